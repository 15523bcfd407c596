"""Patches of images on a CPU, as a convolution meets them, or None where there is no kernel for it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.native.library import kernel, pointer, run, serves


@dataclass(frozen=True)
class Taps:
    """A convolution along one axis: how many taps, their distance, that of two places, zeros before and behind."""

    count: int
    dilation: int
    stride: int
    before: int
    behind: int

    def places(self, size: int) -> int:
        """Return at how many places of an image it is."""
        return (size + self.before + self.behind - self.dilation * (self.count - 1) - 1) // self.stride + 1


class _Axis(ctypes.Structure):
    """The kernels' ``Axis``."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("size", "taps", "dilation", "stride", "before", "places")
    )


def patches(images: Tensor, y: Taps, x: Taps) -> Tensor | None:
    """Return patches [N, C · taps, places] of images [N, C, H, W], like `torch.nn.functional.unfold`."""
    if not serves(images) or not images.is_contiguous():
        return None
    n, channels, *sizes = images.shape
    places = [taps.places(size) for taps, size in zip((y, x), sizes, strict=True)]
    if min(places) < 1:
        return None
    axes = [
        _Axis(size, taps.count, taps.dilation, taps.stride, taps.before, number)
        for size, taps, number in zip(sizes, (y, x), places, strict=True)
    ]
    found = torch.empty(n, channels * y.count * x.count, places[0] * places[1], dtype=images.dtype)
    call, pointers = kernel("patches", images.dtype), [ctypes.byref(axis) for axis in axes]
    run(
        call,
        pointer(images),
        ctypes.c_int64(n * channels),
        *pointers,
        pointer(found),
        kept=(images, axes, found),
    )
    return found
