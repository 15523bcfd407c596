r"""Layer normalisation, twice, in one look: a row is normalised and derived whole.

The formula is that of `cockpit.engine.derivatives.layer_norm`. What belongs to the scale is a sum over all rows: a
program adds up those of its own.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, programs, read_together, tl

TILE = 2048
"""Numbers in a tile."""
LARGEST = 8192
"""Features of a row."""
PER_PROCESSOR = 8
"""Programs that share the rows."""


@jit("rows", "tiles")
def _twice(
    v,
    a,
    b,
    delta,
    x,
    w,
    mean,
    scale,
    by_delta,
    by_x,
    partial,
    rows,
    features,
    tiles,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    WEIGHTED: tl.constexpr,
) -> None:
    lane = tl.arange(0, FEATURES)
    known = lane < features
    of_scale = tl.load(a + lane, mask=known, other=0.0).to(tl.float32)[None, :]
    of_shift = tl.load(b + lane, mask=known, other=0.0).to(tl.float32)[None, :]
    by_w = tl.zeros([ROWS, FEATURES], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = row < rows
        inside = there[:, None] & known[None, :]
        place = row.to(tl.int64)[:, None] * features + lane[None, :]
        r = tl.load(scale + row, mask=there, other=0.0).to(tl.float32)[:, None]
        centre = tl.load(mean + row, mask=there, other=0.0).to(tl.float32)[:, None]
        z = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - centre) * r
        z = tl.where(inside, z, 0.0)
        d = tl.load(delta + place, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(v + place, mask=inside, other=0.0).to(tl.float32)
        e = d
        if WEIGHTED:
            weight = tl.load(w + lane, mask=known, other=0.0).to(tl.float32)[None, :]
            e = d * weight
        mean_u, mean_e = tl.sum(u, axis=1)[:, None] / features, tl.sum(e, axis=1)[:, None] / features
        mean_uz, mean_ez = (
            tl.sum(u * z, axis=1)[:, None] / features,
            tl.sum(e * z, axis=1)[:, None] / features,
        )
        rest = tl.sum(u * e, axis=1)[:, None] / features - mean_u * mean_e - mean_uz * mean_ez
        left = r * (u - mean_u - z * mean_uz)
        by_w += tl.where(inside, d * left, 0.0)
        if WEIGHTED:
            left = left * weight
        tl.store(
            by_delta + place, (left + of_scale * z + of_shift).to(by_delta.dtype.element_ty), mask=inside
        )
        at_z = tl.where(inside, of_scale * d - r * (u * mean_ez + e * mean_uz), 0.0)
        mean_c, mean_cz = (
            tl.sum(at_z, axis=1)[:, None] / features,
            tl.sum(at_z * z, axis=1)[:, None] / features,
        )
        found = r * (at_z - mean_c - z * (mean_cz + r * rest))
        tl.store(by_x + place, found.to(by_x.dtype.element_ty), mask=inside)
    at = partial + tl.program_id(0).to(tl.int64) * features + lane
    tl.store(at, tl.sum(by_w, axis=0), mask=known)


def takes(delta: Tensor, x: Tensor, features: int) -> bool:
    """Say whether there is a kernel for rows of so many features."""
    return read_together(x, delta) and features <= LARGEST


def layer_norm_twice(
    vectors: tuple[Tensor, Tensor, Tensor],
    delta: Tensor,
    x: Tensor,
    w: Tensor | None,
    moments: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by delta, input and weight; the arguments are those of `derivatives.layer_norm.twice`."""
    v, a, b = (t.detach().contiguous() for t in vectors)
    delta, x, mean, scale = delta.detach(), x.detach(), *(t.detach().contiguous() for t in moments)
    rows = mean.numel()
    features = x.numel() // rows
    wide = max(16, 1 << (features - 1).bit_length())
    tall = max(1, TILE // wide)
    tiles = -(-rows // tall)
    held = programs(x, tiles, PER_PROCESSOR)
    by_delta, by_x = torch.empty_like(delta), torch.empty_like(x)
    partial = torch.empty(held, features, dtype=torch.float32, device=x.device)
    with on_device(x):
        _twice[(held,)](
            *(v, a, b, delta, x, a if w is None else w.detach().contiguous(), mean, scale),
            *(by_delta, by_x, partial, rows, features, tiles),
            ROWS=tall,
            FEATURES=wide,
            WEIGHTED=w is not None,
            num_warps=4 if wide <= 2048 else 8,
            enable_fp_fusion=True,
        )
    return by_delta, by_x, partial.sum(0).view(a.shape)
