"""Counting the elements of outer products that are never written out."""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from torch import Tensor

from cockpit.engine.kernels.cells import LEAST, added_ones, cells_of, declared, opened_cells
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.rows import Rows, power_of_two

BLOCK = 2048
"""Products in a tile, at most."""
TALLEST = 32
WARPS = 4
PER_PROCESSOR = 8


@jit()
def product(b, a):
    """Return fl(b · a) as torch rounds it: once in float32, and again to half precision where both have it."""
    x = b * a
    if a.dtype != tl.float64:
        x = (b.to(tl.float32) * a.to(tl.float32)).to(a.dtype).to(tl.float32)
    return x


@jit("pairs", "tall", "height", "width", "bins")
def _outer(
    a,
    b,
    out,
    table,
    pairs,
    tall,
    height,
    width,
    stride_a,
    stride_b,
    bins,
    SIZE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    WAY: tl.constexpr,
    OPENED: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    below, above, high, scale, origin, shift = head_of(table)
    counters = opened_cells(OPENED, WORDS, LANES)
    for pair in range(tl.program_id(0), pairs, tl.num_programs(0)):
        n = (pair // tall).to(tl.int64)
        o = (pair % tall) * HEIGHT + tl.arange(0, HEIGHT)
        left = tl.load(b + n * stride_b + o, mask=o < height, other=0.0)
        for start in range(0, width, WIDTH):
            i = start + tl.arange(0, WIDTH)
            right = tl.load(a + n * stride_a + i, mask=i < width, other=0.0)
            row = row_of(
                product(left[:, None], right[None, :]),
                bins,
                table,
                below,
                above,
                high,
                scale,
                origin,
                shift,
                WAY,
            )
            row = tl.where((o < height)[:, None] & (i < width)[None, :], row, bins + 4)
            counters = added_ones(counters, row, WORDS)
    add_rows(cells_of(counters, tl.arange(0, SIZE), LANES), out, bins, 1, SIZE, True)


def count_products(a: Tensor, b: Tensor, rows: Rows, bins: int, out: Tensor) -> None:
    """Add the counts of all ``b[n, o] · a[n, i]`` to ``out`` [bins + EXTRA] int64."""
    n, width = a.shape
    height = b.shape[1]
    tile = min(TALLEST, power_of_two(height, 4))
    across = min(BLOCK // tile, power_of_two(width, LEAST * 32 * WARPS // tile))
    tall = -(-height // tile)
    with on_device(a):
        _outer[(programs(a, n * tall, PER_PROCESSOR),)](
            a,
            b,
            out,
            rows.table,
            n * tall,
            tall,
            height,
            width,
            a.stride(0),
            b.stride(0),
            bins,
            SIZE=rows.size,
            HEIGHT=tile,
            WIDTH=across,
            WAY=rows.way,
            **declared(rows.size, WARPS),
            enable_fp_fusion=False,
        )
