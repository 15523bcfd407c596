"""Second derivatives of batch normalisation on a CPU by the C kernel, or None where there is none."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from cockpit.engine.native.library import kernel, pointer, run, serves


def batch_norm_twice(
    vectors: tuple[Tensor, Tensor, Tensor],
    delta: Tensor,
    x: Tensor,
    w: Tensor | None,
    moments: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return what `cockpit.engine.derivatives.batch_norm.twice` does, of images [N, C, ...].

    ``vectors`` belong to input, weight and bias, ``moments`` are mean and inverse deviation.
    """
    weights = () if w is None else (w,)
    if not x.numel() or not serves(x, delta, *vectors, *moments, *weights):
        return None
    order = order_of(x)
    images, d, v = (t.contiguous(memory_format=order) for t in (x, delta, vectors[0]))
    mean, scale, a, b = (t.contiguous() for t in (*moments, *vectors[1:]))
    n, channels = x.shape[:2]
    places = x.numel() // (n * channels)
    sizes = (n, channels, places) if order == torch.contiguous_format else (n * places, channels, 1)
    by_delta, by_x, by_w = torch.empty_like(d), torch.empty_like(images), torch.empty_like(mean)
    call, own = kernel("batch_norm_twice", x.dtype), None if w is None else w.contiguous()
    given, made = (images, d, v), (mean, scale, own, a, b, by_delta, by_x, by_w)
    counts = map(ctypes.c_int64, sizes)
    run(call, *map(pointer, given), *counts, *map(pointer, made), kept=(given, made))
    return by_delta, by_x, by_w


def order_of(x: Tensor) -> torch.memory_format:
    """Return in which order the axes of images lie: theirs, or with the channels last."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last
