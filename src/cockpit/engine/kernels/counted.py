"""Norms, projections and counts of a written-out block in one look, where rows can be counted by bit planes.

A tile is 32 values for each lane: of up to eight examples, so that a direction is loaded once for all of them. Where
all values of a tile are so near to zero that they are in one of the two bins beside it, as most gradients are, only
their signs are counted; a lane's squares tell that. Sums are float32 within a lane, float64 from there on.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.kernels.index import finite_row, head_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.planes import add_counts, add_words
from cockpit.engine.kernels.rows import Rows, power_of_two

WARPS, EXAMPLES = 4, 8
MOST_TILES, MOST_COUNTED = 64, 2047
"""Tiles of a program: float32 sums stay short; a count of 16 bits holds all values of a lane."""

SHARES = {True: (3, 168), False: (4, 128)}
"""Programs on a multiprocessor at once, and the registers that this leaves a lane: with sums, and without."""


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
def _counted(
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
    CENTRAL: tl.constexpr,
) -> None:
    WIDTH: tl.constexpr = PARTS * LANES * 4
    UNIT: tl.constexpr = 4 if FOURS else 1  # of m and stride: the compiler is to know that fours are whole
    j = tl.arange(0, WIDTH)
    who = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    present = (who < n)[:, None]
    held = tl.minimum(n - tl.program_id(0) * EXAMPLES, EXAMPLES) * (PARTS * 4)  # values of a lane
    base = block + who.to(tl.int64)[:, None] * (stride * UNIT)
    norm = tl.zeros([EXAMPLES, LANES], tl.float32)
    d0 = tl.zeros([EXAMPLES, LANES], tl.float32)
    d1 = tl.zeros([EXAMPLES, LANES], tl.float32)
    d2 = tl.zeros([EXAMPLES, LANES], tl.float32)
    _, _, high, scale, _, shift = head_of(table)
    counts = tl.zeros([8, 8, LANES], tl.int32)
    negatives = tl.zeros([LANES], tl.int32)
    others = tl.zeros([LANES], tl.int32)
    square = (scale * scale).to(tl.float32)
    start = tl.program_id(1).to(tl.int64) * tiles * (WIDTH // UNIT)
    for tile in range(0, tiles):
        at = start + tile * (WIDTH // UNIT)
        left = tl.minimum(tl.maximum(m - at, 0), WIDTH // UNIT).to(tl.int32) * UNIT
        inside = present & (j < left)[None, :]
        x = tl.load(base + at * UNIT + j[None, :], mask=inside, other=0.0).to(tl.float32)
        x = _by_lane(x, EXAMPLES, PARTS, LANES, FOURS)
        squares = tl.sum(tl.sum(x * x, axis=3), axis=1)
        norm += squares
        if DIRECTIONS > 0:
            v = tl.load(v0 + at * UNIT + j, mask=j < left, other=0.0)
            d0 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
        if DIRECTIONS > 1:
            v = tl.load(v1 + at * UNIT + j, mask=j < left, other=0.0)
            d1 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
        if DIRECTIONS > 2:
            v = tl.load(v2 + at * UNIT + j, mask=j < left, other=0.0)
            d2 += tl.sum(tl.sum(x * _by_lane(v, 1, PARTS, LANES, FOURS), axis=3), axis=1)
        near = False
        if CENTRAL:  # a comparison, since a maximum would pass over NaN
            small = (squares * square < 0.98).to(tl.int32)
            near = (tl.min(tl.min(small, axis=0), axis=0) == 1) & (left == WIDTH)
        if near:
            negative = tl.sum(tl.sum(tl.sum((x < 0).to(tl.int32), axis=3), axis=1), axis=0)
            negatives += negative
            others += held - negative
        else:
            row = finite_row(x, bins, high, scale, shift)
            row = tl.where(_by_lane(inside, EXAMPLES, PARTS, LANES, FOURS), row, bins + 4)
            words = tl.sum(row << (8 * tl.arange(0, 4)[None, None, None, :]), axis=3)
            words = tl.reshape(words, [8, LANES])
            counts = add_words(words, counts, LANES)
    there = partial + (tl.program_id(1).to(tl.int64) * n + who) * (1 + DIRECTIONS)
    total = tl.sum(norm.to(tl.float64), axis=1)
    tl.store(there, total, mask=who < n)
    if DIRECTIONS > 0:
        tl.store(there + 1, tl.sum(d0.to(tl.float64), axis=1), mask=who < n)
    if DIRECTIONS > 1:
        tl.store(there + 2, tl.sum(d1.to(tl.float64), axis=1), mask=who < n)
    if DIRECTIONS > 2:
        tl.store(there + 3, tl.sum(d2.to(tl.float64), axis=1), mask=who < n)
    add_counts(counts, out, bins)
    if CENTRAL:
        tl.atomic_add(out + shift - 1, tl.sum(negatives).to(tl.int64), sem="relaxed")
        tl.atomic_add(out + shift, tl.sum(others).to(tl.int64), sem="relaxed")
    # Values that are not finite have been counted outside of the bins; where there may be some, they are looked for.
    if not (tl.abs(tl.sum(total, axis=0)) < float("inf")):
        nans = start * 0
        most = start * 0
        least = start * 0
        for tile in range(0, tiles):
            at = start + tile * (WIDTH // UNIT)
            left = tl.minimum(tl.maximum(m - at, 0), WIDTH // UNIT).to(tl.int32) * UNIT
            inside = present & (j < left)[None, :]
            x = tl.load(base + at * UNIT + j[None, :], mask=inside, other=0.0).to(tl.float32)
            nans += _true(x != x)
            most += _true(x == float("inf"))
            least += _true(x == float("-inf"))
        tl.atomic_add(out + bins, -nans - least, sem="relaxed")
        tl.atomic_add(out + bins + 1, -most, sem="relaxed")
        tl.atomic_add(out + bins + 2, nans, sem="relaxed")
        tl.atomic_add(out + bins + 3, most + least, sem="relaxed")


def counted_block(
    block: Tensor, directions: Sequence[Tensor], rows: Rows, bins: int, out: Tensor, sums: bool = True
) -> Tensor:
    """Add counts of a block [n, m] to ``out``; return partial sums [·, n, 1 + k], unless they are not asked for."""
    n, m = block.shape
    examples = min(EXAMPLES, power_of_two(n, 1))
    lanes, parts = 32 * WARPS, EXAMPLES // examples
    across, down = -(-m // (parts * lanes * 4)), -(-n // examples)
    at_once, registers = SHARES[sums]
    tiles = -(-across // max(1, programs(block, across * down, at_once) // down))
    tiles = min(tiles, MOST_TILES if sums else MOST_COUNTED)
    fours = m % 4 == 0 and block.stride(0) % 4 == 0
    partial = torch.empty(
        -(-across // tiles), n, 1 + len(directions), dtype=torch.float64, device=block.device
    )
    v0, v1, v2 = ([*directions] + 3 * [block])[:3]
    with on_device(block):
        _counted[(down, len(partial))](
            block,
            v0,
            v1,
            v2,
            partial,
            out,
            rows.table,
            n,
            m // 4 if fours else m,
            block.stride(0) // 4 if fours else block.stride(0),
            bins,
            tiles,
            EXAMPLES=examples,
            PARTS=parts,
            LANES=lanes,
            DIRECTIONS=len(directions),
            FOURS=fours,
            CENTRAL=rows.central and sums,
            num_warps=WARPS,
            maxnreg=registers,
        )
    return partial
