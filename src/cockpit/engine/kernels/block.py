"""Everything that one look at written-out gradients can tell: norms, projections, counts.

A tile is 32 values for each lane: of up to eight examples, so that a direction is loaded once for all of them. Sums are
float32 within a lane, float64 from there on.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.kernels.cells import added_ones, cells_of, declared, opened_cells
from cockpit.engine.kernels.index import add_rows, finite_row, head_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.rows import Rows, power_of_two, prepared
from cockpit.engine.numbers.binning import EXTRA, Grid

WARPS, LANES = 4, 128
EXAMPLES = 8
VALUES = 32
"""Of a lane, in a tile."""
MOST_DIRECTIONS = 3
MOST_TILES = 64
"""Of a program, so that float32 sums stay short."""
PER_PROCESSOR = 8
"""Programs; half as many where there are directions, which every program loads."""


@jit()
def _by_lane(x, EXAMPLES: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr, FOURS: tl.constexpr):
    """View what was loaded as [EXAMPLES, PARTS, LANES, 4], so that each lane has its own: four neighbours or not."""
    if FOURS:
        return tl.reshape(x, [EXAMPLES, PARTS, LANES, 4])
    return tl.permute(tl.reshape(x, [EXAMPLES, PARTS, 4, LANES]), (0, 1, 3, 2))


@jit()
def _true(x):
    """Return how many elements of a tile are true."""
    return tl.sum(tl.sum(x.to(tl.int32), axis=1), axis=0)


@jit("n", "bins", "tiles")
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
    tiles,
    EXAMPLES: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    FOURS: tl.constexpr,
    SIZE: tl.constexpr,
    WAY: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    WIDTH: tl.constexpr = PARTS * LANES * 4
    UNIT: tl.constexpr = 4 if FOURS else 1  # of m and stride: the compiler is to know that fours are whole
    j = tl.arange(0, WIDTH)
    who = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    present = (who < n)[:, None]
    base = block + who.to(tl.int64)[:, None] * (stride * UNIT)
    norm = tl.zeros([EXAMPLES, LANES], tl.float32)
    d0 = tl.zeros([EXAMPLES, LANES], tl.float32)
    d1 = tl.zeros([EXAMPLES, LANES], tl.float32)
    d2 = tl.zeros([EXAMPLES, LANES], tl.float32)
    if SIZE > 0:
        below, above, high, scale, origin, shift = head_of(table)
        counters = opened_cells(OPENED, WORDS, LANES)
    start = tl.program_id(1).to(tl.int64) * tiles * (WIDTH // UNIT)
    for tile in range(0, tiles):
        at = start + tile * (WIDTH // UNIT)
        left = tl.minimum(tl.maximum(m - at, 0), WIDTH // UNIT).to(tl.int32) * UNIT
        inside = present & (j < left)[None, :]
        x = tl.load(base + at * UNIT + j[None, :], mask=inside, other=0.0)
        if x.dtype != tl.float64:
            x = x.to(tl.float32)
        if SIZE > 0:
            row = finite_row(x, bins, table, below, above, high, scale, origin, shift, WAY)
            counters = added_ones(counters, tl.where(inside, row, bins + 4), WORDS)
        x = _by_lane(x.to(tl.float32), EXAMPLES, PARTS, LANES, FOURS)
        norm += tl.sum(tl.sum(x * x, axis=3), axis=1)
        if DIRECTIONS > 0:
            v = tl.load(v0 + at * UNIT + j, mask=j < left, other=0.0)
            d0 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
        if DIRECTIONS > 1:
            v = tl.load(v1 + at * UNIT + j, mask=j < left, other=0.0)
            d1 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
        if DIRECTIONS > 2:
            v = tl.load(v2 + at * UNIT + j, mask=j < left, other=0.0)
            d2 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
    there = partial + (tl.program_id(1).to(tl.int64) * n + who) * (1 + DIRECTIONS)
    total = tl.sum(norm.to(tl.float64), axis=1)
    tl.store(there, total, mask=who < n)
    if DIRECTIONS > 0:
        tl.store(there + 1, tl.sum(d0.to(tl.float64), axis=1), mask=who < n)
    if DIRECTIONS > 1:
        tl.store(there + 2, tl.sum(d1.to(tl.float64), axis=1), mask=who < n)
    if DIRECTIONS > 2:
        tl.store(there + 3, tl.sum(d2.to(tl.float64), axis=1), mask=who < n)
    if SIZE > 0:
        add_rows(cells_of(counters, tl.arange(0, SIZE), LANES), out, bins, 1, SIZE, True)
        # What is not finite has been counted outside of the bins; where there may be some of that, it is looked for.
        if not (tl.abs(tl.sum(total, axis=0)) < float("inf")):
            nans = start * 0
            most = start * 0
            least = start * 0
            for tile in range(0, tiles):
                at = start + tile * (WIDTH // UNIT)
                left = tl.minimum(tl.maximum(m - at, 0), WIDTH // UNIT).to(tl.int32) * UNIT
                inside = present & (j < left)[None, :]
                x = tl.load(base + at * UNIT + j[None, :], mask=inside, other=0.0)
                nans += _true(x != x)
                most += _true(x == float("inf"))
                least += _true(x == float("-inf"))
            tl.atomic_add(out + bins, -nans - least, sem="relaxed")
            tl.atomic_add(out + bins + 1, -most, sem="relaxed")
            tl.atomic_add(out + bins + 2, nans, sem="relaxed")
            tl.atomic_add(out + bins + 3, most + least, sem="relaxed")


def block_statistics(
    block: Tensor,
    directions: Sequence[Tensor] = (),
    grid: Grid | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""Return $\|g_i\|^2$ [n], $g_i^\top v_j$ [n, k] and the counts of all elements of a float32 block [n, m].

    Sums are float64. There are counts where there is a grid (of one dimension), as from `count`, added to ``out``.
    """
    if len(directions) > MOST_DIRECTIONS or any(x.dtype != torch.float32 for x in (block, *directions)):
        raise ValueError(f"float32 and at most {MOST_DIRECTIONS} directions, please")
    block = block.detach()
    block = block if block.stride(1) == 1 else block.contiguous()
    n = len(block)
    directions = [v.detach().flatten().contiguous() for v in directions]
    rows = None if grid is None else prepared(grid, False, block.device)
    if grid is not None and out is None:
        out = torch.zeros(grid.bins + EXTRA, dtype=torch.int64, device=block.device)
    if block.numel():
        partial = looked_at(block, directions, rows, 0 if grid is None else grid.bins, out)
    else:
        partial = torch.zeros(1, n, 1 + len(directions), dtype=torch.float64, device=block.device)
    sums = partial.transpose(1, 2).sum(0)  # each statistic's numbers side by side, to be packed by one launch
    return sums[0], sums[1:].T, out


def looked_at(
    block: Tensor, directions: Sequence[Tensor], rows: Rows | None, bins: int, out: Tensor | None
) -> Tensor:
    """Add counts of a block [n, m] to ``out``; return partial sums of squares and products, [·, n, 1 + k]."""
    n, m = block.shape
    examples = min(EXAMPLES, power_of_two(n, 1))
    parts = VALUES // 4 // examples
    across, down = -(-m // (parts * LANES * 4)), -(-n // examples)
    per = PER_PROCESSOR // 2 if directions else PER_PROCESSOR
    tiles = -(-across // max(1, programs(block, across * down, per) // down))
    tiles = min(tiles, MOST_TILES)
    fours = m % 4 == 0 and block.stride(0) % 4 == 0
    partial = torch.empty(
        -(-across // tiles), n, 1 + len(directions), dtype=torch.float64, device=block.device
    )
    v0, v1, v2 = ([*directions] + 3 * [block])[:3]
    with on_device(block):
        _block[(down, len(partial))](
            block,
            v0,
            v1,
            v2,
            partial,
            partial if out is None else out,
            partial if rows is None else rows.table,
            n,
            m // 4 if fours else m,
            block.stride(0) // 4 if fours else block.stride(0),
            bins,
            tiles,
            EXAMPLES=examples,
            PARTS=parts,
            DIRECTIONS=len(directions),
            FOURS=fours,
            SIZE=0 if rows is None else rows.size,
            WAY="" if rows is None else rows.way,
            **declared(0 if rows is None else rows.size, WARPS),
            enable_fp_fusion=True,
        )
    return partial
