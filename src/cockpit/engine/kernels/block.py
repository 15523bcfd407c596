"""Everything that one pass over written-out gradients can tell: norms, projections, counts.

`cockpit.engine.kernels.counted` looks where there is a grid that it knows; the kernel here takes the others, and is
faster where nothing is counted. Sums are float32 within a lane (at most 16 terms), float64 from there on; programs
write partial sums that are added in a fixed order, so that results are the same bits every time.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.binning import EXTRA, Grid
from cockpit.engine.kernels.counted import counted_block
from cockpit.engine.kernels.counting import count
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, tl
from cockpit.engine.kernels.rows import Rows, prepared

EXAMPLES, BLOCK, TILES = 4, 512, 16
"""A program's share: examples, positions in a tile, tiles."""
MOST_DIRECTIONS = 3


@jit("n", "m", "bins")
def _block(
    block,
    v0,
    v1,
    v2,
    partial,
    out,
    table,
    n,
    m,
    stride,
    bins,
    EXAMPLES: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    SIZE: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    present = example < n
    base = block + example.to(tl.int64)[:, None] * stride
    norm = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d0 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d1 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    d2 = tl.zeros([EXAMPLES, BLOCK], tl.float32)
    if SIZE > 0:
        below, above, high, scale, origin, shift = head_of(table)
        rows = tl.zeros([SIZE], tl.int32)
    start = tl.program_id(1).to(tl.int64) * (BLOCK * TILES)
    for tile in range(0, TILES):
        j = start + tile * BLOCK + tl.arange(0, BLOCK)
        inside = present[:, None] & (j < m)[None, :]
        x = tl.load(base + j[None, :], mask=inside, other=0.0)
        norm = tl.fma(x, x, norm)
        if DIRECTIONS > 0:
            d0 = tl.fma(
                x, tl.broadcast_to(tl.load(v0 + j, mask=j < m, other=0.0)[None, :], [EXAMPLES, BLOCK]), d0
            )
        if DIRECTIONS > 1:
            d1 = tl.fma(
                x, tl.broadcast_to(tl.load(v1 + j, mask=j < m, other=0.0)[None, :], [EXAMPLES, BLOCK]), d1
            )
        if DIRECTIONS > 2:
            d2 = tl.fma(
                x, tl.broadcast_to(tl.load(v2 + j, mask=j < m, other=0.0)[None, :], [EXAMPLES, BLOCK]), d2
            )
        if SIZE > 0:
            row = row_of(x, bins, table, below, above, high, scale, origin, shift, WAY)
            row = tl.where(inside, row, bins + 4)
            rows += tl.histogram(tl.reshape(row, [EXAMPLES * BLOCK]), SIZE)
    at = partial + (tl.program_id(1).to(tl.int64) * n + example) * (1 + DIRECTIONS)
    tl.store(at, tl.sum(norm.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 0:
        tl.store(at + 1, tl.sum(d0.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 1:
        tl.store(at + 2, tl.sum(d1.to(tl.float64), axis=1), mask=present)
    if DIRECTIONS > 2:
        tl.store(at + 3, tl.sum(d2.to(tl.float64), axis=1), mask=present)
    if SIZE > 0:
        add_rows(rows, out, bins, 1, SIZE, True)


def block_statistics(
    block: Tensor,
    directions: Sequence[Tensor] = (),
    grid: Grid | None = None,
    place: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Return $\|g_i\|^2$ [n], $g_i^\top v_j$ [n, k] and the counts of all elements of a float32 block [n, m].

    Sums are float64. There are counts where there is a grid, as from `count`; those by ``place`` take a second pass.
    """
    if len(directions) > MOST_DIRECTIONS or any(x.dtype != torch.float32 for x in (block, *directions)):
        raise ValueError(f"float32 and at most {MOST_DIRECTIONS} directions, please")
    block = block.detach()
    block = block if block.stride(1) == 1 else block.contiguous()
    n = len(block)
    fused = grid is not None and place is None
    if grid is not None and out is None:
        out = torch.zeros(grid.bins * grid.columns + EXTRA, dtype=torch.int64, device=block.device)
    directions = [v.detach().flatten().contiguous() for v in directions]
    rows = prepared(grid, False, block.device) if grid is not None and fused else None
    if not block.numel():
        partial = torch.zeros(1, n, 1 + len(directions), dtype=torch.float64, device=block.device)
    elif grid is not None and rows is not None and rows.tallied and out is not None:
        partial = counted_block(block, directions, rows, grid.bins, out)
    else:
        partial = _looped(block, directions, rows, 0 if grid is None else grid.bins, out)
        if grid is not None and place is not None:
            count(block, grid, place, out)
    sums = partial.transpose(1, 2).sum(0)  # each statistic's numbers side by side, to be packed by one launch
    return sums[0], sums[1:].T, out


def _looped(
    block: Tensor, directions: Sequence[Tensor], rows: Rows | None, bins: int, out: Tensor | None
) -> Tensor:
    n, m = block.shape
    splits = -(-m // (BLOCK * TILES))
    partial = torch.empty(splits, n, 1 + len(directions), dtype=torch.float64, device=block.device)
    v0, v1, v2 = ([*directions] + 3 * [block])[:3]
    with on_device(block):
        _block[(-(-n // EXAMPLES), splits)](
            block,
            v0,
            v1,
            v2,
            partial,
            partial if out is None else out,
            partial if rows is None else rows.table,
            n,
            m,
            block.stride(0),
            bins,
            EXAMPLES=EXAMPLES,
            BLOCK=BLOCK,
            TILES=TILES,
            DIRECTIONS=len(directions),
            SIZE=0 if rows is None else rows.size,
            WAY="" if rows is None else rows.way,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return partial
