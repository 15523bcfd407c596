"""Precision: in which numbers are summed, and how not to be rounded by the user's settings."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_AS_IT_IS = nullcontext()

NONFINITE = "nonfinite: a product with the curvature matrix holds inf or nan"
"""Why there is no number that would follow from such a product."""


def wide(x: Tensor) -> Tensor:
    """Return ``x`` in a dtype whose squares and sums can be trusted: half precisions become float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating type of a device: float64, but for Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Return a block in which nothing is rounded to a lower precision (at no cost where that is so already)."""
    if not torch.is_autocast_enabled(device_type):
        return _AS_IT_IS
    return torch.autocast(device_type, enabled=False)


def exact_products() -> bool:
    """Say whether products of float32 matrices are those of float32, and not rounded to fewer bits."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set for each backend by the newer interface
        return False
