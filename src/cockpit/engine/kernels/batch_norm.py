r"""Batch normalisation, twice, in two looks at the images: sums for each channel, then both derivatives at once.

The formula is that of `cockpit.engine.derivatives.batch_norm`. With $z = s\,(x - \mu)$ both derivatives are
combinations of $v$, $\delta$, $z$ and 1, whose seven factors follow from five sums over a channel. $v$ and $\delta$ are
summed from about their means on, those of the first image: where these are large, digits of products would cancel.
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
"""Pixels in a tile's row."""
EXAMPLES, CHANNELS = 32, 16
"""Sums that are added up at once."""


@jit()
def _place(rows, channels, pixels, ROWS: tl.constexpr):
    """Return a program's rows (a channel of an image each), which are there, their channels, where they begin."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row, row < rows, row % channels, (row * pixels)[:, None]


@jit("rows", "channels")
def _sums(
    v, delta, x, mean, scale, about, sums, rows, channels, pixels, ROWS: tl.constexpr, PIXELS: tl.constexpr
) -> None:
    row, there, channel, begin = _place(rows, channels, pixels, ROWS)
    centre = tl.load(mean + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    factor = tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    about_v = tl.load(about + channel, mask=there, other=0.0)[:, None]
    about_d = tl.load(about + channels + channel, mask=there, other=0.0)[:, None]
    of_v = tl.zeros([ROWS, PIXELS], tl.float32)
    of_d = tl.zeros([ROWS, PIXELS], tl.float32)
    of_vz = tl.zeros([ROWS, PIXELS], tl.float32)
    of_dz = tl.zeros([ROWS, PIXELS], tl.float32)
    of_vd = tl.zeros([ROWS, PIXELS], tl.float32)
    lane = tl.arange(0, PIXELS)
    for start in range(0, pixels, PIXELS):
        inside = there[:, None] & (start + lane < pixels)[None, :]
        place = begin + start + lane[None, :]
        u = tl.load(v + place, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(delta + place, mask=inside, other=0.0).to(tl.float32)
        u, d = tl.where(inside, u - about_v, 0.0), tl.where(inside, d - about_d, 0.0)
        z = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - centre) * factor
        of_v += u
        of_d += d
        of_vz += u * z
        of_dz += d * z
        of_vd += u * d
    tl.store(sums + row, tl.sum(of_v, axis=1), mask=there)
    tl.store(sums + rows + row, tl.sum(of_d, axis=1), mask=there)
    tl.store(sums + 2 * rows + row, tl.sum(of_vz, axis=1), mask=there)
    tl.store(sums + 3 * rows + row, tl.sum(of_dz, axis=1), mask=there)
    tl.store(sums + 4 * rows + row, tl.sum(of_vd, axis=1), mask=there)


@jit("examples", "channels", "count")
def _factors(
    about,
    sums,
    scale,
    w,
    a,
    b,
    factors,
    by_w,
    examples,
    channels,
    count,
    WEIGHTED: tl.constexpr,
    EXAMPLES: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    lane = tl.arange(0, EXAMPLES)
    size = examples.to(tl.int64) * channels
    of_v = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    of_d = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    of_vz = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    of_dz = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    of_vd = tl.zeros([EXAMPLES, CHANNELS], tl.float64)
    for start in range(0, examples, EXAMPLES):
        inside = (start + lane < examples)[:, None] & (c < channels)[None, :]
        place = (start + lane).to(tl.int64)[:, None] * channels + c[None, :]
        of_v += tl.load(sums + place, mask=inside, other=0.0)
        of_d += tl.load(sums + size + place, mask=inside, other=0.0)
        of_vz += tl.load(sums + 2 * size + place, mask=inside, other=0.0)
        of_dz += tl.load(sums + 3 * size + place, mask=inside, other=0.0)
        of_vd += tl.load(sums + 4 * size + place, mask=inside, other=0.0)
    n = count.to(tl.float64)
    mean_v, mean_d = tl.sum(of_v, axis=0) / n, tl.sum(of_d, axis=0) / n
    mean_vz, mean_dz = tl.sum(of_vz, axis=0) / n, tl.sum(of_dz, axis=0) / n
    rest = tl.sum(of_vd, axis=0) / n - mean_v * mean_d - mean_vz * mean_dz
    known = c < channels
    mean_v += tl.load(about + c, mask=known, other=0.0)
    mean_d += tl.load(about + channels + c, mask=known, other=0.0)
    s = tl.load(scale + c, mask=known, other=0.0).to(tl.float64)
    g = s
    if WEIGHTED:
        g = s * tl.load(w + c, mask=known, other=0.0).to(tl.float64)
    slope = tl.load(a + c, mask=known, other=0.0).to(tl.float64) - g * mean_vz
    level = tl.load(b + c, mask=known, other=0.0).to(tl.float64) - g * mean_v
    more = slope * mean_dz - g * mean_dz * mean_vz + g * rest
    mean = slope * mean_d - g * mean_dz * mean_v
    tl.store(factors + c, g.to(tl.float32), mask=known)
    tl.store(factors + channels + c, slope.to(tl.float32), mask=known)
    tl.store(factors + 2 * channels + c, level.to(tl.float32), mask=known)
    tl.store(factors + 3 * channels + c, (s * slope).to(tl.float32), mask=known)
    tl.store(factors + 4 * channels + c, (-s * g * mean_dz).to(tl.float32), mask=known)
    tl.store(factors + 5 * channels + c, (-s * more).to(tl.float32), mask=known)
    tl.store(factors + 6 * channels + c, (-s * mean).to(tl.float32), mask=known)
    tl.store(by_w + c, (s * rest * n).to(tl.float32), mask=known)


@jit()
def _factor(factors, k: tl.constexpr, channels, channel, there):
    """Load one factor of each row."""
    return tl.load(factors + k * channels + channel, mask=there, other=0.0)[:, None]


@jit("rows", "channels")
def _combined(
    v,
    delta,
    x,
    mean,
    scale,
    factors,
    by_delta,
    by_x,
    rows,
    channels,
    pixels,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
) -> None:
    _, there, channel, begin = _place(rows, channels, pixels, ROWS)
    centre = tl.load(mean + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    factor = tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    dv, dz = _factor(factors, 0, channels, channel, there), _factor(factors, 1, channels, channel, there)
    d1, xd = _factor(factors, 2, channels, channel, there), _factor(factors, 3, channels, channel, there)
    xv, xz = _factor(factors, 4, channels, channel, there), _factor(factors, 5, channels, channel, there)
    x1 = _factor(factors, 6, channels, channel, there)
    lane = tl.arange(0, PIXELS)
    for start in range(0, pixels, PIXELS):
        inside = there[:, None] & (start + lane < pixels)[None, :]
        place = begin + start + lane[None, :]
        u = tl.load(v + place, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(delta + place, mask=inside, other=0.0).to(tl.float32)
        z = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - centre) * factor
        tl.store(by_delta + place, (dv * u + dz * z + d1).to(by_delta.dtype.element_ty), mask=inside)
        tl.store(by_x + place, (xd * d + xv * u + xz * z + x1).to(by_x.dtype.element_ty), mask=inside)


def takes(delta: Tensor, x: Tensor) -> bool:
    """Say whether there are kernels for these images [N, C, ...]."""
    return x.ndim > 1 and read_together(x, delta)


def batch_norm_twice(
    vectors: tuple[Tensor, Tensor, Tensor],
    delta: Tensor,
    x: Tensor,
    w: Tensor | None,
    moments: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by delta, input and weight; the arguments are those of `derivatives.batch_norm.twice`."""
    v, a, b = (t.detach().contiguous() for t in vectors)
    delta, x, mean, scale = delta.detach(), x.detach(), *(t.detach() for t in moments)
    n, channels = x.shape[:2]
    pixels, rows = x.numel() // (n * channels), n * channels
    wide = min(LONGEST, 1 << (pixels - 1).bit_length())
    tall = TILE // wide
    about = torch.stack([v[0], delta[0]]).view(2, channels, pixels).mean(2, dtype=torch.float32)
    sums = torch.empty(5, rows, dtype=torch.float32, device=x.device)
    factors = torch.empty(7, channels, dtype=torch.float32, device=x.device)
    by_w = torch.empty(channels, dtype=torch.float32, device=x.device)
    by_delta, by_x = torch.empty_like(delta), torch.empty_like(x)
    grid, sizes = (-(-rows // tall),), (rows, channels, pixels)
    tile = {"ROWS": tall, "PIXELS": wide, "num_warps": 4, "enable_fp_fusion": True}
    summed = {"EXAMPLES": EXAMPLES, "CHANNELS": CHANNELS, "num_warps": 4, "enable_fp_fusion": True}
    known = scale if w is None else w.detach()
    with on_device(x):
        _sums[grid](v, delta, x, mean, scale, about, sums, *sizes, **tile)
        _factors[(-(-channels // CHANNELS),)](
            *(about, sums, scale, known, a, b, factors, by_w),
            *(n, channels, n * pixels),
            WEIGHTED=w is not None,
            **summed,
        )
        _combined[grid](v, delta, x, mean, scale, factors, by_delta, by_x, *sizes, **tile)
    return by_delta, by_x, by_w
