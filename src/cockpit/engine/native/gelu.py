"""Second derivatives of GELU on a CPU by the C kernel, or None where there is none."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from cockpit.engine.native.library import kernel, pointer, run, serves


def gelu_twice(v: Tensor, delta: Tensor, x: Tensor, by_tanh: bool) -> Tensor | None:
    """Return the derivative by x of ⟨v, δ · GELU'(x)⟩."""
    if not serves(x, delta, v):
        return None
    given = [t.contiguous() for t in (x, delta, v)]
    found = torch.empty_like(given[0])
    counts = ctypes.c_int64(x.numel()), ctypes.c_int64(by_tanh)
    run(kernel("gelu_twice", x.dtype), *map(pointer, given), *counts, pointer(found), kept=(given, found))
    return found
