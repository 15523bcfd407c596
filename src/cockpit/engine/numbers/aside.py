"""Tensors that are looked at once a step and never changed, kept where the system may take their memory back.

They are written to a file that has no name, so that nobody can change it, and mapped: what is read stays in the
system's cache of files as long as there is room, at the speed of memory, and is read from the disk again otherwise.
What lies on a GPU stays there, and what does not fit is copied as usual.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress

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
    size = sum(t.numel() * t.element_size() for t in detached.values())
    if size > SMALL and all(t.device.type == "cpu" for t in detached.values()):
        # where there is no disk, or a type that NumPy does not know, a copy it is
        with suppress(OSError, RuntimeError, TypeError, ValueError):
            if shutil.disk_usage(tempfile.gettempdir()).free >= SPARE * size:
                return _mapped(detached)
    return {name: tensor.clone() for name, tensor in detached.items()}


def _mapped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {name: t.clone() for name, t in tensors.items() if not t.numel()}  # of nothing there is no map
    some = {name: t for name, t in tensors.items() if t.numel()}
    for dtype in {t.dtype for t in some.values()}:  # one file each: torch saves no memory of two types
        alike = {name: t for name, t in some.items() if t.dtype is dtype}
        with tempfile.TemporaryFile() as file:
            for t in alike.values():
                file.write(t.contiguous().view(-1).view(torch.uint8).numpy().data)
            file.flush()
            numbers = np.memmap(file, np.uint8, mode="c")  # as if it could be written to
        pieces = torch.from_numpy(numbers).view(dtype).split([t.numel() for t in alike.values()])
        found |= {name: piece.view(t.shape) for (name, t), piece in zip(alike.items(), pieces, strict=True)}
    return {name: found[name] for name in tensors}
