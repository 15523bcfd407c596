"""Numbers that kernels look up on the device: uploaded once, or written by a kernel while a graph is captured.

A capture does not record copies from the host, and a tensor that is made in one holds nothing before the graph runs:
such a tensor is written from a kernel's arguments whenever the graph runs, and belongs to the graph alone. The others
are kept for good, since graphs that have been captured read them where they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

_UPLOADED: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device; shared, not to be changed."""
    key = values, dtype, device
    if key not in _UPLOADED:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return _written(values, dtype, device)
        _UPLOADED[key] = torch.tensor(values, dtype=dtype, device=device)
    return _UPLOADED[key]


def _written(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the same without a copy: the numbers are arguments of one launch for many of them."""
    out = torch.zeros(len(values), dtype=dtype, device=device)
    torch._foreach_add_(list(out.split(1)), list(values))
    return out
