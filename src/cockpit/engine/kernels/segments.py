"""What one look tells of the written-out gradients of many small parameters, side by side in one block.

A program looks at one parameter's gradients of a few examples, so nothing has to be joined afterwards. Sums are float32
within a lane, float64 from there on.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from cockpit.engine.kernels.cells import added_ones, cells_of, declared, opened_cells
from cockpit.engine.kernels.constants import constant
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, tl
from cockpit.engine.kernels.rows import prepared
from cockpit.engine.numbers.binning import EXTRA, Grid

WARPS = 4
EXAMPLES, BLOCK = 4, 512
"""A program's examples, and positions in a tile."""


@jit("n", "bins", "stride")
def _segments(
    block,
    v0,
    v1,
    v2,
    bounds,
    sums,
    out,
    table,
    n,
    stride,
    bins,
    EXTRA: tl.constexpr,
    EXAMPLES: tl.constexpr,
    BLOCK: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    SIZE: tl.constexpr,
    WAY: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    segment = tl.program_id(1)
    present = example < n
    base = block + example.to(tl.int64)[:, None] * stride
    norm = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d0 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d1 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d2 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    if SIZE > 0:
        below, above, high, scale, origin, shift = head_of(table)
        counters = opened_cells(OPENED, WORDS, LANES)
    stop = tl.load(bounds + segment + 1)
    for start in range(tl.load(bounds + segment), stop, BLOCK):
        j = start + tl.arange(0, BLOCK)
        inside = present[:, None] & (j < stop)[None, :]
        x = tl.load(base + j[None, :], mask=inside, other=0.0)
        norm = tl.fma(x, x, norm)
        if DIRECTIONS > 0:
            v = tl.load(v0 + j, mask=j < stop, other=0.0)
            d0 = tl.fma(x, tl.broadcast_to(v[None, :], [EXAMPLES, BLOCK]), d0)
        if DIRECTIONS > 1:
            v = tl.load(v1 + j, mask=j < stop, other=0.0)
            d1 = tl.fma(x, tl.broadcast_to(v[None, :], [EXAMPLES, BLOCK]), d1)
        if DIRECTIONS > 2:
            v = tl.load(v2 + j, mask=j < stop, other=0.0)
            d2 = tl.fma(x, tl.broadcast_to(v[None, :], [EXAMPLES, BLOCK]), d2)
        if SIZE > 0:
            row = row_of(x, bins, table, below, above, high, scale, origin, shift, WAY)
            row = tl.where(inside, row, bins + 4)
            counters = added_ones(counters, row, WORDS)
    at = sums + (segment.to(tl.int64) * n + example) * (1 + DIRECTIONS)
    tl.store(at, tl.sum(norm.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 0:
        tl.store(at + 1, tl.sum(d0.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 1:
        tl.store(at + 2, tl.sum(d1.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 2:
        tl.store(at + 3, tl.sum(d2.to(tl.float64), axis=1), mask=present)
    if SIZE > 0:
        rows = cells_of(counters, tl.arange(0, SIZE), LANES)
        add_rows(rows, out + segment * (bins + EXTRA), bins, 1, SIZE, True)


def segment_statistics(
    block: Tensor, sizes: tuple[int, ...], directions: Sequence[Tensor] = (), grid: Grid | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Return $\|g_i\|^2$ [S, n], $g_i^\top v_j$ [S, n, k] and counts [S, bins + EXTRA] of each of S segments.

    Args:
        block: the segments' gradients side by side, float32, [n, sum of the sizes].
        sizes: how many columns each segment has.
        directions: at most `MOST_DIRECTIONS`, as long as a row, float32.
        grid: of the counts.
    """
    n = len(block)
    sums = torch.empty(len(sizes), n, 1 + len(directions), dtype=torch.float64, device=block.device)
    out, rows = None, None
    if grid is not None:
        out = torch.zeros(len(sizes), grid.bins + EXTRA, dtype=torch.int64, device=block.device)
        rows = prepared(grid, False, block.device)
    v0, v1, v2 = ([*directions] + 3 * [block])[:3]
    if sums.numel():
        with on_device(block):
            _segments[(-(-n // EXAMPLES), len(sizes))](
                block,
                v0,
                v1,
                v2,
                constant((0, *accumulate(sizes)), torch.int32, block.device),
                sums,
                sums if out is None else out,
                sums if rows is None else rows.table,
                n,
                block.stride(0),
                0 if grid is None else grid.bins,
                EXTRA=EXTRA,
                EXAMPLES=EXAMPLES,
                BLOCK=BLOCK,
                DIRECTIONS=len(directions),
                SIZE=0 if rows is None else rows.size,
                WAY="" if rows is None else rows.way,
                **declared(0 if rows is None else rows.size, WARPS),
                enable_fp_fusion=False,
            )
    sums = sums.permute(
        2, 0, 1
    ).contiguous()  # each statistic's numbers side by side, to be packed by one launch
    return sums[0], sums[1:].permute(1, 2, 0), out
