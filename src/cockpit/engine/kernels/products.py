r"""Norms, projections and counts of gradients that are sums of outer products, without writing the gradients out.

$g_n[o, i, t] = \sum_k b_n[o, k]\, a_n[i, k + s_t]$: a convolution over pixels k of padded images, with a shift for each
tap t of its kernel. A program multiplies one tile of one example's
gradient, looks at it while it is in registers, and forgets it. Products of half precision are exact; those of float32
are split into three of TensorFloat-32, which keeps float32's accuracy, unless fewer bits are asked for. Sums over a row
of a tile are float32, from there on float64.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.binning import EXTRA, Grid
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, tl
from cockpit.engine.kernels.rows import prepared

USES = 32
"""How many terms of the sum are loaded at once."""


@dataclass(frozen=True, eq=False)
class Products:
    """Individual gradients as products: ``b`` [N, O, K], ``a`` [N, I, ≥ K], ``shifts`` [T] int32 into a's last axis.

    Elements of the gradients are in the order [O, I, T], all times ``factor``. ``rough``: products of float32 may be
    rounded to TensorFloat-32, as the training's own are.
    """

    b: Tensor
    a: Tensor
    shifts: Tensor
    rough: bool = False
    factor: float = 1.0


def rounds(backend: Any) -> bool:
    """Say whether a backend of the training multiplies float32 numbers in TensorFloat-32."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # it was set by the newer interface; then this one may not be asked
        return bool(backend.fp32_precision == "tf32")


@lru_cache(maxsize=256)
def shifts_on(device: torch.device, *shifts: int) -> Tensor:
    """Return shifts as a tensor that is there from now on: a recorded launch must not wait for a copy."""
    return torch.tensor(shifts, dtype=torch.int32, device=device)


@jit("outputs", "inputs", "uses", "taps", "bins")
def _products(
    b,
    a,
    shifts,
    v0,
    v1,
    v2,
    partial,
    out,
    table,
    outputs,
    inputs,
    uses,
    taps,
    b_n,
    b_o,
    b_k,
    a_n,
    a_i,
    a_k,
    examples,
    bins,
    factor,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    USES: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    SIZE: tl.constexpr,
    WAY: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    across = tl.cdiv(inputs, INPUTS)
    tile = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    tap = tile % taps
    i = (tile // taps) % across * INPUTS + tl.arange(0, INPUTS)
    o = (tile // taps) // across * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, USES)
    left = b + n * b_n + o.to(tl.int64)[:, None] * b_o + k[None, :] * b_k
    right = a + n * a_n + i.to(tl.int64)[None, :] * a_i + (k + tl.load(shifts + tap))[:, None] * a_k
    known_o, known_i = (o < outputs)[:, None], (i < inputs)[None, :]
    g = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    for start in range(0, uses, USES):
        there = start + k < uses
        x = tl.load(left, mask=known_o & there[None, :], other=0.0)
        y = tl.load(right, mask=known_i & there[:, None], other=0.0)
        g = tl.dot(x, y, g, input_precision=PRECISION)
        left += USES * b_k
        right += USES * a_k
    inside = known_o & known_i
    g = tl.where(inside, g * factor, 0.0)  # beyond the gradient, zeros have met infinities
    at = partial + (tile.to(tl.int64) * examples + n) * (1 + DIRECTIONS)
    tl.store(at, tl.sum(tl.sum(g * g, axis=1).to(tl.float64), axis=0))
    place = (tap.to(tl.int64) * outputs + o)[:, None] * inputs + i[None, :]
    if DIRECTIONS > 0:
        v = tl.load(v0 + place, mask=inside, other=0.0)
        tl.store(at + 1, tl.sum(tl.sum(g * v, axis=1).to(tl.float64), axis=0))
    if DIRECTIONS > 1:
        v = tl.load(v1 + place, mask=inside, other=0.0)
        tl.store(at + 2, tl.sum(tl.sum(g * v, axis=1).to(tl.float64), axis=0))
    if DIRECTIONS > 2:
        v = tl.load(v2 + place, mask=inside, other=0.0)
        tl.store(at + 3, tl.sum(tl.sum(g * v, axis=1).to(tl.float64), axis=0))
    if SIZE > 0:
        below, cap, high, scale, origin, shift = head_of(table)
        row = row_of(g, bins, table, below, cap, high, scale, origin, shift, WAY)
        row = tl.where(inside, row, bins + 4)
        rows = tl.histogram(tl.reshape(row, [OUTPUTS * INPUTS]), SIZE)
        add_rows(rows, out, bins, 1, SIZE, True)


def product_statistics(
    products: Products, directions: Sequence[Tensor] = (), grid: Grid | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Return $\|g_n\|^2$ [N] and $g_n^\top v_j$ [N, k] as float64, and counts of all elements as from `count`."""
    b, a = products.b.detach(), products.a.detach()
    n, outputs, uses = b.shape
    inputs, taps = a.shape[1], len(products.shifts)
    tall, wide, warps = _shape(outputs, inputs, taps)
    tiles = taps * -(-outputs // tall) * -(-inputs // wide)
    partial = torch.empty(tiles, n, 1 + len(directions), dtype=torch.float64, device=b.device)
    out = None
    if grid is not None:
        out = torch.zeros(grid.bins + EXTRA, dtype=torch.int64, device=b.device)
    rows = None if grid is None else prepared(grid, False, b.device)
    # the taps first: neighbours in memory are neighbours in a tile
    vectors = [v.detach().view(outputs, inputs, taps).movedim(2, 0).contiguous() for v in directions]
    v0, v1, v2 = (vectors + 3 * [partial])[:3]
    if partial.numel():
        with on_device(b):
            _products[(tiles, n)](
                b,
                a,
                products.shifts,
                v0,
                v1,
                v2,
                partial,
                partial if out is None else out,
                partial if rows is None else rows.table,
                outputs,
                inputs,
                uses,
                taps,
                *b.stride(),
                *a.stride(),
                n,
                0 if grid is None else grid.bins,
                products.factor,
                OUTPUTS=tall,
                INPUTS=wide,
                USES=USES,
                DIRECTIONS=len(directions),
                SIZE=0 if rows is None else rows.size,
                WAY="" if rows is None else rows.way,
                PRECISION="tf32" if products.rough or b.dtype != torch.float32 else "tf32x3",
                num_warps=warps,
                num_stages=3,
                enable_fp_fusion=False,
            )
    sums = partial.sum(0)
    return sums[:, 0], sums[:, 1:], out


def _shape(outputs: int, inputs: int, taps: int) -> tuple[int, int, int]:
    """Return the tile's outputs and inputs, and how many warps work on it."""
    tall = 128 if outputs > 64 else 64 if outputs > 32 else 32
    wide = 128 if inputs > 64 and taps > 1 else 64 if inputs > 32 else 32
    return tall, wide, 8 if tall * wide > 4096 else 4
