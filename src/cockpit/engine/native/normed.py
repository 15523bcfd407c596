"""What single examples add to the gradients of batch normalisation, by the C kernel, or None where there is none."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from cockpit.engine.native.batch_norm import order_of
from cockpit.engine.native.library import kernel, pointer, run, serves


def scale_and_shift(x: Tensor, delta: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
    """Return the contributions to the gradients of weight and bias, [N, C], of images [N, C, ...].

    They are normalised by the statistics of the batch.
    """
    if not x.numel() or not serves(x, delta):
        return None
    order = order_of(x)
    given = [t.contiguous(memory_format=order) for t in (x, delta)]
    n, channels = x.shape[:2]
    places = x.numel() // (n * channels)
    last = places == 1 or order != torch.contiguous_format
    found = torch.empty(2, n, channels, dtype=x.dtype).unbind(0)
    counts = map(ctypes.c_int64, (n, channels, places, last))
    made = map(pointer, found)
    call = kernel("scale_and_shift", x.dtype)
    run(call, *map(pointer, given), *counts, ctypes.c_double(eps), *made, kept=(given, found))
    return found[0], found[1]
