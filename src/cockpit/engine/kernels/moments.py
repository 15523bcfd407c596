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

from cockpit.engine.kernels.language import jit, on_device, runs_on, tl

TILE = 2048
"""Numbers in a tile."""
LONGEST = 1024
"""Pixels in a tile's row."""


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
    tl.store(sums + row, tl.sum(slope.to(tl.float64), axis=1), mask=there)
    tl.store(sums + rows + row, tl.sum(mixed.to(tl.float64), axis=1), mask=there)
    tl.store(sums + 2 * rows + row, tl.sum(first.to(tl.float64), axis=1), mask=there)
    tl.store(sums + 3 * rows + row, tl.sum(second.to(tl.float64), axis=1), mask=there)


def takes(x: Tensor, dy: Tensor) -> bool:
    """Say whether there is a kernel for these images [N, C, *space]."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    return (
        runs_on(x)
        and x.dtype in known
        and dy.dtype in known
        and x.shape == dy.shape
        and x.ndim > 2
        and x.is_contiguous()
        and dy.is_contiguous()
        and x.numel() > 0
    )


def scale_and_shift(x: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    r"""Return $g_n^\gamma$ and $g_n^\beta$, both [N, C] float32, of a BatchNorm by the statistics of its batch."""
    n, channels = x.shape[:2]
    pixels = x[0, 0].numel()
    wide = min(LONGEST, 1 << (pixels - 1).bit_length())
    tall = TILE // wide
    sums = torch.empty(4, n, channels, dtype=torch.float64, device=x.device)
    with on_device(x):
        _moments[(-(-n * channels // tall),)](
            x.detach(), dy.detach(), sums, n * channels, channels, pixels, ROWS=tall, PIXELS=wide, num_warps=4
        )
    slope, mixed, first, second = sums.unbind(0)
    mean = first.sum(0) / (n * pixels)
    variance = second.sum(0) / (n * pixels) - mean.square()
    scale = (mixed - mean * slope) * (variance.clamp_min(0) + eps).rsqrt()
    return scale.float(), slope.float()
