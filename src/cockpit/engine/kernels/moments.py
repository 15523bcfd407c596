r"""Sums over the pixels of every channel of every image that a normalisation's gradients are made of, in one look.

With the normalised input $\hat x = (x - \mu)\,\rho$ a scale has $g_n^\gamma = \rho\,(\sum \delta x - \mu \sum \delta)$
and a shift $g_n^\beta = \sum \delta$, over the pixels of example n; $\mu$ and $\rho$ follow from sums of $x$ and $x^2$.
So inputs and output gradients are read once, and the normalised input is never written out. Inputs are taken relative
to one of them, lest a large mean swallow their differences.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, read_together, tl

TILE = 1024
"""Numbers in a tile."""
LONGEST = 256
"""Pixels in a tile's row: measured fastest on an H200, with the images of a ResNet-50."""


@jit("rows", "channels")
def _moments(
    x,
    dy,
    sums,
    rows,
    channels,
    pixels,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    origin = tl.load(x + row % channels * pixels, mask=there, other=0.0).to(tl.float32)
    slope = tl.zeros([ROWS, PIXELS], tl.float32)
    mixed = tl.zeros([ROWS, PIXELS], tl.float32)
    first = tl.zeros([ROWS, PIXELS], tl.float32)
    second = tl.zeros([ROWS, PIXELS], tl.float32)
    lane = tl.arange(0, PIXELS)
    for start in range(0, pixels, PIXELS):
        inside = there[:, None] & (start + lane < pixels)[None, :]
        place = row[:, None] * pixels + start + lane[None, :]
        away = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - origin[:, None]
        away = tl.where(inside, away, 0.0)
        d = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        slope += d
        mixed += d * away
        first += away
        second += away * away
    tl.store(sums + row, tl.sum(slope, axis=1).to(tl.float64), mask=there)
    tl.store(sums + rows + row, tl.sum(mixed, axis=1).to(tl.float64), mask=there)
    tl.store(sums + 2 * rows + row, tl.sum(first, axis=1).to(tl.float64), mask=there)
    tl.store(sums + 3 * rows + row, tl.sum(second, axis=1).to(tl.float64), mask=there)


@jit("examples", "channels", "count", "eps")
def _scaled(
    sums, found, examples, channels, count, eps, EXAMPLES: tl.constexpr, CHANNELS: tl.constexpr
) -> None:
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    lane = tl.arange(0, EXAMPLES)
    size = examples.to(tl.int64) * channels
    first = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    second = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    for start in range(0, examples, EXAMPLES):
        inside = (start + lane < examples)[:, None] & (c < channels)[None, :]
        place = (start + lane).to(tl.int64)[:, None] * channels + c[None, :]
        first += tl.load(sums + 2 * size + place, mask=inside, other=0.0)
        second += tl.load(sums + 3 * size + place, mask=inside, other=0.0)
    mean = tl.sum(first, axis=0) / count.to(tl.float64)
    variance = tl.sum(second, axis=0) / count.to(tl.float64) - mean * mean
    variance = tl.where(variance < 0, 0.0, variance)
    inverse = 1 / tl.sqrt(variance + eps)
    for start in range(0, examples, EXAMPLES):
        inside = (start + lane < examples)[:, None] & (c < channels)[None, :]
        place = (start + lane).to(tl.int64)[:, None] * channels + c[None, :]
        slope = tl.load(sums + place, mask=inside, other=0.0)
        mixed = tl.load(sums + size + place, mask=inside, other=0.0)
        tl.store(
            found + place, ((mixed - mean[None, :] * slope) * inverse[None, :]).to(tl.float32), mask=inside
        )
        tl.store(found + size + place, slope.to(tl.float32), mask=inside)


def takes(x: Tensor, dy: Tensor) -> bool:
    """Say whether there is a kernel for these images [N, C, *space]."""
    return x.ndim > 2 and read_together(x, dy)


def scale_and_shift(x: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    r"""Return $g_n^\gamma$ and $g_n^\beta$, both [N, C] float32, of a BatchNorm by the statistics of its batch."""
    n, channels = x.shape[:2]
    pixels = x[0, 0].numel()
    wide = min(LONGEST, 1 << (pixels - 1).bit_length())
    tall = TILE // wide
    sums = torch.empty(4, n, channels, dtype=torch.float64, device=x.device)
    found = torch.empty(2, n, channels, dtype=torch.float32, device=x.device)
    with on_device(x):
        _moments[(-(-n * channels // tall),)](
            x.detach(),
            dy.detach(),
            sums,
            n * channels,
            channels,
            pixels,
            ROWS=tall,
            PIXELS=wide,
            num_warps=4,
            enable_fp_fusion=True,
        )
        _scaled[(-(-channels // 16),)](
            sums,
            found,
            n,
            channels,
            n * pixels,
            float(eps),
            EXAMPLES=32,
            CHANNELS=16,
            num_warps=4,
            enable_fp_fusion=True,
        )
    scale, shift = found.unbind(0)
    return scale, shift
