"""Counting by the column of each position: two dimensions at the price of one.

A lane keeps a few positions and walks through the examples, counting in shared memory. Every 248 examples its counters
are multiplied by the positions' columns, one-hot, on the matrix units: counts · [place = column], exact in float16 with
sums in float32. So nothing is contended for, however the values are spread, and memory sees one addition for each cell
and program.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from torch import Tensor

from cockpit.engine.binning import EXTRA
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.outer import product
from cockpit.engine.kernels.rows import Rows, power_of_two
from cockpit.engine.kernels.tally import BYTES, LANES, MOST, WARPS, cleared, opened_bytes, read, tallied_at

GROUP = 8
"""Examples that are loaded at once."""
TURN = MOST // GROUP * GROUP
"""Examples between two multiplications."""
PER_PROCESSOR = 8
LEAST = 64
"""Rows, rounded up to a power of two, at least."""


@jit()
def _add_cells(cells, first, out, bins, columns) -> None:
    """Add the cells [rows, columns from the first on] of the bins to the result.

    A few at once: the compiler takes them through shared memory, of which, beside the counters, 16 KiB are left.
    """
    if cells.numel > 2048:
        halves = tl.permute(tl.reshape(cells, [cells.shape[0], 2, cells.shape[1] // 2]), (0, 2, 1))
        left, right = tl.split(halves)
        _add_cells(left, first, out, bins, columns)
        _add_cells(right, first + cells.shape[1] // 2, out, bins, columns)
    else:
        r = tl.arange(0, cells.shape[0])[:, None]
        column = first + tl.arange(0, cells.shape[1])[None, :]
        counted = (cells > 0) & (r >= 1) & (r <= bins) & (column < columns)
        tl.atomic_add(out + (r - 1) * columns + column, cells.to(tl.int64), mask=counted, sem="relaxed")


# the alignment of places is not known, so that it does not decide which positions a lane has
@jit("place", "n", "m", "width", "tiles", "chunk", "bins", "columns")
def _placed(
    a,
    b,
    place,
    out,
    table,
    n,
    m,
    width,
    stride_a,
    stride_b,
    tiles,
    chunk,
    bins,
    columns,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    GROUP: tl.constexpr,
    TURN: tl.constexpr,
    OUTER: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    """Count; a lane has ``EACH`` positions: ``NEIGHBOURS`` that are loaded together, or positions `LANES` apart."""
    WIDTH: tl.constexpr = LANES * EACH
    UNIT: tl.constexpr = EACH if NEIGHBOURS else 1  # of m: the compiler is to know that neighbours are whole
    below, above, high, scale, origin, shift = head_of(table)
    counters = opened_bytes()
    cells = tl.zeros([SIZE, COLUMNS], tl.int32)
    column = tl.arange(0, COLUMNS)[None, :]
    first = tl.program_id(1).to(tl.int64) * chunk  # examples are counted in int64: i · stride may be large
    last = tl.minimum(first + chunk, n)
    e = tl.arange(0, WIDTH)
    if NEIGHBOURS:
        lane, which = e // EACH, e % EACH
    else:
        lane, which = e % LANES, e // LANES
    own = (which * 32 + lane % 32) * 4 + lane // 32  # the place of a position's counters among those of a row
    words = tl.arange(0, SIZE)[:, None] * WIDTH + tl.arange(0, 32)[None, :] * 4
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        j = tile * WIDTH + e
        where = tl.load(place + j, mask=j < m * UNIT, other=0)
        at_a, at_b = a + j, b
        if OUTER:
            at_a, at_b = a + j % width, b + j // width
        for start in range(first, last, TURN):
            for group in range(start, tl.minimum(start + TURN, last), GROUP):
                for k in tl.static_range(GROUP):
                    i = group + k
                    inside = j < tl.where(i < last, m, 0) * UNIT
                    x = tl.load(at_a + i * stride_a, mask=inside, other=0.0)
                    if OUTER:
                        x = product(tl.load(at_b + i * stride_b, mask=inside, other=0.0), x)
                    elif x.dtype != tl.float64:
                        x = x.to(tl.float32)
                    row = row_of(x, bins, table, below, above, high, scale, origin, shift, WAY)
                    row = tl.where(where < 0, bins + 2, row)
                    counters = tallied_at(counters, tl.where(inside, row, bins + 4) * WIDTH + own)
            counts = tl.zeros([SIZE, COLUMNS], tl.float32)
            for part in tl.static_range(EACH):
                found = read(counters, words + part * 128)
                for warp in tl.static_range(LANES // 32):
                    p = warp * 32 + tl.arange(0, 32)
                    p = tile * WIDTH + (p * EACH + part if NEIGHBOURS else part * LANES + p)
                    at = tl.maximum(tl.load(place + p, mask=p < m * UNIT, other=0), 0)
                    one_hot = (at[:, None] == column).to(tl.float16)
                    counts = tl.dot(((found >> (8 * warp)) & 255).to(tl.float16), one_hot, counts)
            counters = cleared(counters)
            cells += counts.to(tl.int32)
    _add_cells(cells, 0, out, bins, columns)
    add_rows(tl.sum(cells, axis=1), out, bins, columns, SIZE, False)


def count_placed(
    a: Tensor, b: Tensor | None, place: Tensor, rows: Rows, bins: int, columns: int, out: Tensor
) -> None:
    """Add the counts of values ``a`` [n, m], or of products ``b[n, o] · a[n, i]``, to ``out``."""
    n, width = a.shape
    m = place.numel()
    across = power_of_two(columns)
    size = power_of_two(bins + EXTRA + 1, LEAST)
    each = BYTES // (size * LANES)
    neighbours = b is None and m % each == 0 and a.stride(0) % each == 0
    tiles = -(-m // (LANES * each))
    held = programs(a, tiles, PER_PROCESSOR)
    # Few positions and many examples: the examples are shared among programs too.
    shares = max(1, min(programs(a, -(-n // GROUP), PER_PROCESSOR) // held, -(-n // (4 * GROUP))))
    chunk = -(-n // shares)
    with on_device(a):
        _placed[(held, -(-n // chunk))](
            a,
            a if b is None else b,
            place,
            out,
            rows.table,
            n,
            m // each if neighbours else m,
            width,
            a.stride(0),
            0 if b is None else b.stride(0),
            tiles,
            chunk,
            bins,
            columns,
            SIZE=size,
            COLUMNS=across,
            LANES=LANES,
            EACH=each,
            NEIGHBOURS=neighbours,
            GROUP=GROUP,
            TURN=TURN,
            OUTER=b is not None,
            WAY=rows.way,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
