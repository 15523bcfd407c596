"""Counting by the column of each position: two dimensions at less than twice the price of one.

A program has a counter of four bytes for each cell in shared memory, to which its lanes add ones. The hardware adds
those that meet in one counter at once, so that skewed values take no longer than spread ones; and the rows of cells are
an odd number of words long, lest equal columns of different rows share a bank. Memory sees one addition for each cell
and program. Values outside of the bins have no column: each of their kinds has one counter.

The columns of positions are looked up once for some examples; these and positions make a unit of work.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from torch import Tensor

from cockpit.engine.kernels.cells import added_ones, declared, opened_cells
from cockpit.engine.kernels.index import add_cells, cell_of, head_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.outer import product
from cockpit.engine.kernels.rows import Rows, power_of_two
from cockpit.engine.numbers.binning import EXTRA

EXAMPLES, POSITIONS = 4, 1024
"""Of a tile of values."""
TALLEST, PRODUCTS = 16, 2048
"""Of a tile of products of one example."""
LONGEST = 32
"""Examples of a unit, at most."""
WARPS, PER_PROCESSOR = 8, 4
UNIT = 1024
"""Counters that are read at once."""


@jit()
def _counted(
    counters, x, where, inside, bins, stride, table, below, above, high, scale, origin, shift, WORDS, WAY
):
    """Count values whose columns are ``where``; ``stride``: words in a row of cells."""
    cell = cell_of(x, where, bins, stride, table, below, above, high, scale, origin, shift, WAY)
    return added_ones(counters, tl.where(inside, cell, (bins + 4) * stride), WORDS)


# the alignment of places is not known, so that it does not decide how values are loaded
@jit("place", "n", "units", "chunk", "chunks", "bins", "columns", "stride")
def _placed(
    a,
    place,
    out,
    table,
    n,
    m,
    stride_a,
    units,
    chunk,
    chunks,
    bins,
    columns,
    stride,
    EXAMPLES: tl.constexpr,
    POSITIONS: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
    UNIT: tl.constexpr,
    LANES: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    below, above, high, scale, origin, shift = head_of(table)
    counters = opened_cells(OPENED, WORDS, LANES)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        j = (unit // chunks) * POSITIONS + tl.arange(0, POSITIONS)
        where = tl.load(place + j, mask=j < m, other=0)[None, :]
        first = (unit % chunks) * chunk
        last = tl.minimum(first + chunk, n)
        for start in range(first, last, EXAMPLES):
            i = start + tl.arange(0, EXAMPLES)
            inside = (i < last)[:, None] & (j < m)[None, :]
            x = tl.load((a + j)[None, :] + i.to(tl.int64)[:, None] * stride_a, mask=inside, other=0.0)
            if x.dtype != tl.float64:
                x = x.to(tl.float32)
            counters = _counted(
                counters,
                x,
                where,
                inside,
                bins,
                stride,
                table,
                below,
                above,
                high,
                scale,
                origin,
                shift,
                WORDS,
                WAY,
            )
    add_cells(counters, out, bins, columns, stride, UNIT, LANES)


@jit("place", "n", "height", "width", "units", "chunk", "chunks", "across", "bins", "columns", "stride")
def _placed_products(
    a,
    b,
    place,
    out,
    table,
    n,
    height,
    width,
    stride_a,
    stride_b,
    units,
    chunk,
    chunks,
    across,
    bins,
    columns,
    stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
    UNIT: tl.constexpr,
    LANES: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    below, above, high, scale, origin, shift = head_of(table)
    counters = opened_cells(OPENED, WORDS, LANES)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        tile = unit // chunks
        o = (tile // across) * HEIGHT + tl.arange(0, HEIGHT)
        i = (tile % across) * WIDTH + tl.arange(0, WIDTH)
        inside = (o < height)[:, None] & (i < width)[None, :]
        where = tl.load(place + o[:, None] * width + i[None, :], mask=inside, other=0)
        first = (unit % chunks) * chunk
        for turn in range(0, tl.minimum(chunk, n - first)):
            k = first.to(tl.int64) + turn
            left = tl.load(b + k * stride_b + o, mask=o < height, other=0.0)
            right = tl.load(a + k * stride_a + i, mask=i < width, other=0.0)
            counters = _counted(
                counters,
                product(left[:, None], right[None, :]),
                where,
                inside,
                bins,
                stride,
                table,
                below,
                above,
                high,
                scale,
                origin,
                shift,
                WORDS,
                WAY,
            )
    add_cells(counters, out, bins, columns, stride, UNIT, LANES)


def count_placed(
    a: Tensor, b: Tensor | None, place: Tensor, rows: Rows, bins: int, columns: int, out: Tensor
) -> None:
    """Add the counts of values ``a`` [n, m], or of products ``b[n, o] · a[n, i]``, to ``out``."""
    n, width = a.shape
    stride = columns | 1
    same = declared((bins + EXTRA + 1) * stride, WARPS, UNIT)
    same |= {"UNIT": UNIT, "WAY": rows.way, "enable_fp_fusion": False}
    if b is None:
        tiles = -(-width // POSITIONS)
        held, units, chunk, chunks = _shared_out(a, tiles, n)
        with on_device(a):
            _placed[(held,)](
                a,
                place,
                out,
                rows.table,
                n,
                width,
                a.stride(0),
                units,
                chunk,
                chunks,
                bins,
                columns,
                stride,
                EXAMPLES=EXAMPLES,
                POSITIONS=POSITIONS,
                **same,
            )
        return
    height = b.shape[1]
    tall = min(TALLEST, power_of_two(height, 4))
    wide = min(PRODUCTS // tall, power_of_two(width, 4 * 32 * WARPS // tall))
    across = -(-width // wide)
    held, units, chunk, chunks = _shared_out(a, across * -(-height // tall), n)
    with on_device(a):
        _placed_products[(held,)](
            a,
            b,
            place,
            out,
            rows.table,
            n,
            height,
            width,
            a.stride(0),
            b.stride(0),
            units,
            chunk,
            chunks,
            across,
            bins,
            columns,
            stride,
            HEIGHT=tall,
            WIDTH=wide,
            **same,
        )


def _shared_out(x: Tensor, tiles: int, examples: int) -> tuple[int, int, int, int]:
    """Return how many programs share how many units; the examples of each, and how many such shares there are.

    Units are so many that all programs have about as much, but long enough for looking their positions up.
    """
    most = programs(x, tiles * examples, PER_PROCESSOR)
    chunk = max(EXAMPLES, min(LONGEST, tiles * examples // (8 * most) // EXAMPLES * EXAMPLES))
    chunks = -(-examples // chunk)
    return min(most, tiles * chunks), tiles * chunks, chunk, chunks
