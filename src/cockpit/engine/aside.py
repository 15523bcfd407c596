"""Tensors that are looked at once a step and never changed, kept where the system may take their memory back.

They are written to a file that has no name, so that nobody can change it, and mapped: what is read stays in the
system's cache of files as long as there is room, at the speed of memory, and is read from the disk again otherwise.
What lies on a GPU stays there, and what does not fit is copied as usual.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

SMALL = 2**20
"""Up to how many bytes a copy in memory will do."""
SPARE = 8
"""How many times as much must be free on the disk."""


def aside(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors; nobody may write to them."""
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    try:
        return _mapped(detached)
    except (OSError, RuntimeError, TypeError, ValueError):  # no disk, or a type that NumPy does not know
        return {name: tensor.clone() for name, tensor in detached.items()}


def _mapped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    if size <= SMALL or any(t.device.type != "cpu" for t in tensors.values()):
        raise ValueError("a copy will do")
    if shutil.disk_usage(tempfile.gettempdir()).free < SPARE * size:
        raise OSError("little room on the disk")
    found: dict[str, Tensor] = {}
    for dtype in {t.dtype for t in tensors.values()}:  # one file each: torch saves no memory of two types
        alike = {name: t for name, t in tensors.items() if t.dtype is dtype and t.numel()}
        sizes = [t.numel() for t in alike.values()]
        with tempfile.TemporaryFile() as file:
            for t in alike.values():
                file.write(t.contiguous().view(-1).view(torch.uint8).numpy().data)
            file.flush()
            if not sizes:
                continue
            numbers = np.memmap(file, np.uint8, mode="c")  # as if it could be written to
        pieces = torch.from_numpy(numbers).view(dtype).split(sizes)
        found |= {name: piece.view(t.shape) for (name, t), piece in zip(alike.items(), pieces, strict=True)}
    return {name: found[name] if name in found else t.clone() for name, t in tensors.items()}
