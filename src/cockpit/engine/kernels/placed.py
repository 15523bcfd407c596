"""Counting by the column of each position: two dimensions at the price of one.

A thread keeps one position and walks through the examples. Its counters are private and packed, eight of four bits in
an integer; every 8 examples they are spread over bytes, every 248 the bytes are multiplied by the positions' columns,
one-hot, on the matrix units: counts · [place = column], exact in float16 with sums in float32. So nothing is
contended for, however the values are spread, and memory sees one addition for each cell and program.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from torch import Tensor

from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.outer import product
from cockpit.engine.kernels.rows import Rows, power_of_two

GROUP = 8
"""Examples between two spreads; a counter of four bits holds 15."""
GROUPS = 31
"""Spreads between two multiplications; a byte holds 255."""
PER_PROCESSOR = 8


@jit("n", "m", "width", "tiles", "chunk", "bins", "columns")
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
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    OUTER: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    below, cap, high, scale, origin, shift = head_of(table)
    cells = tl.zeros([SIZE, COLUMNS], tl.int32)
    word = tl.arange(0, SIZE // 8)[:, None]
    eighth = tl.arange(0, 8)[None, :, None]
    column = tl.arange(0, COLUMNS)[None, :]
    first = tl.program_id(1).to(tl.int64) * chunk  # examples are counted in int64: i · stride may be large
    last = tl.minimum(first + chunk, n)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        j = tile * LANES + tl.arange(0, LANES)
        where = tl.load(place + j, mask=j < m, other=0)
        one_hot = (tl.maximum(where, 0)[:, None] == column).to(tl.float16)
        at_a, at_b = a + j, b
        if OUTER:
            at_a, at_b = a + j % width, b + j // width
        for start in range(first, last, GROUP * GROUPS):
            even = tl.zeros([SIZE // 8, LANES], tl.int32)
            odd = tl.zeros([SIZE // 8, LANES], tl.int32)
            for group in range(start, tl.minimum(start + GROUP * GROUPS, last), GROUP):
                packed = tl.zeros([SIZE // 8, LANES], tl.int32)
                for k in tl.static_range(GROUP):
                    i = group + k
                    inside = j < tl.where(i < last, m, 0)
                    x = tl.load(at_a + i * stride_a, mask=inside, other=0.0)
                    if OUTER:
                        x = product(tl.load(at_b + i * stride_b, mask=inside, other=0.0), x)
                    elif x.dtype != tl.float64:
                        x = x.to(tl.float32)
                    row = row_of(x, bins, table, below, cap, high, scale, origin, shift, WAY)
                    row = tl.where(where < 0, bins + 2, row)
                    row = tl.where(inside, row, bins + 4)
                    unit = tl.full([LANES], 1, tl.int32) << ((row & 7) * 4)
                    packed += tl.where((row >> 3)[None, :] == word, unit[None, :], 0)
                even += packed & 0x0F0F0F0F
                odd += (packed >> 4) & 0x0F0F0F0F
            both = tl.where((eighth & 1) == 0, even[:, None, :], odd[:, None, :])
            counts = (both >> ((eighth >> 1) * 8)) & 255
            counts = tl.reshape(counts, [SIZE, LANES]).to(tl.float16)
            cells += tl.dot(counts, one_hot).to(tl.int32)
    r = tl.arange(0, SIZE)[:, None]
    counted = (cells > 0) & (r >= 1) & (r <= bins) & (column < columns)
    tl.atomic_add(out + (r - 1) * columns + column, cells.to(tl.int64), mask=counted, sem="relaxed")
    add_rows(tl.sum(cells, axis=1), out, bins, columns, SIZE, False)


def count_placed(
    a: Tensor, b: Tensor | None, place: Tensor, rows: Rows, bins: int, columns: int, out: Tensor
) -> None:
    """Add the counts of values ``a`` [n, m], or of products ``b[n, o] · a[n, i]``, to ``out``."""
    n, width = a.shape
    m = place.numel()
    across = power_of_two(columns)
    warps = 4 if rows.size * across <= 4096 else 8
    lanes = 32 * warps
    tiles = -(-m // lanes)
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
            m,
            width,
            a.stride(0),
            0 if b is None else b.stride(0),
            tiles,
            chunk,
            bins,
            columns,
            SIZE=rows.size,
            COLUMNS=across,
            LANES=lanes,
            GROUP=GROUP,
            GROUPS=GROUPS,
            OUTER=b is not None,
            WAY=rows.way,
            num_warps=warps,
            enable_fp_fusion=False,
        )
