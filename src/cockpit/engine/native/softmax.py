"""Second derivatives of softmax on a CPU by the C kernels, or None where there are none."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from cockpit.engine.native.library import kernel, pointer, run, serves


def softmax_twice(v: Tensor, p: Tensor, d: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the derivatives by p and d of ⟨v, p (d - ⟨p, d⟩)⟩; sums are over the last axis."""
    if not p.numel() or not serves(p, d, v):
        return None
    given = [t.contiguous() for t in (p, d, v)]
    found = torch.empty_like(given[0]), torch.empty_like(given[0])
    counts = ctypes.c_int64(p.numel() // p.shape[-1]), ctypes.c_int64(p.shape[-1])
    call = kernel("softmax_twice", p.dtype)
    run(call, *map(pointer, given), *counts, *map(pointer, found), kept=(given, found))
    return found


def softmax_columns(p: Tensor, weights: Tensor, columns: slice) -> Tensor | None:
    """Return columns [K, N, C] of the roots of κ (diag(p) - ppᵀ), of probabilities [N, C] and weights κ [N]."""
    if not p.numel() or not serves(p, weights):
        return None
    p, weights, count = p.contiguous(), weights.contiguous(), columns.stop - columns.start
    found = torch.empty(count, *p.shape, dtype=p.dtype)
    sizes = map(ctypes.c_int64, (*p.shape, columns.start, columns.stop))
    tiny, call = ctypes.c_double(torch.finfo(p.dtype).tiny), kernel("softmax_columns", p.dtype)
    run(call, pointer(p), pointer(weights), *sizes, tiny, pointer(found), kept=(p, weights, found))
    return found
