"""The parts that counting kernels share: a value's row or cell, and a program's counters added to the result."""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from cockpit.engine.kernels.cells import cells_of
from cockpit.engine.kernels.language import floor, fma_down, jit, tl


@jit()
def head_of(table):
    """Return the numbers before the edges of `cockpit.engine.kernels.rows.Rows.table`."""
    below, above, high = tl.load(table), tl.load(table + 1), tl.load(table + 2)
    return below, above, high, tl.load(table + 3), tl.load(table + 4), tl.load(table + 5).to(tl.int32)


@jit()
def finite_row(x, bins, table, below, above, high, scale, origin, shift, WAY: tl.constexpr):
    """Return the row of each value, int32; the ways are explained in `cockpit.engine.kernels.rows`.

    NaN and −∞ are below the range, ∞ is above it.
    """
    if WAY == "down":
        # 1.5 · 2²³ and a row are a float32 whose last bits are the row
        z = fma_down(x, scale.to(tl.float32), shift.to(tl.float32) + 12582913.0)
        z = tl.minimum(tl.maximum(z, 12582912.0), bins.to(tl.float32) + 12582913.0)
        row = z.to(tl.int32, bitcast=True) - 0x4B400000
    else:
        y = tl.minimum(tl.maximum(x, below.to(x.dtype)), above.to(x.dtype)).to(tl.float64)
        row = floor((y - origin) * scale) + (shift + 1)
        if WAY == "edges":
            row = tl.minimum(tl.maximum(row, 1), bins)
            left, right = tl.load(table + 5 + row), tl.load(table + 6 + row)
            row = row - (y < left).to(tl.int32) + (y >= right).to(tl.int32)
    return tl.where(x == high.to(x.dtype), bins, row)


@jit()
def row_of(x, bins, table, below, above, high, scale, origin, shift, WAY: tl.constexpr):
    """Return the same, with rows of their own for NaN and what is infinite."""
    row = finite_row(x, bins, table, below, above, high, scale, origin, shift, WAY)
    row = tl.where(x == x, row, bins + 2)
    return tl.where(tl.abs(x) == float("inf"), bins + 3, row)


@jit()
def cell_of(x, where, bins, stride, table, below, above, high, scale, origin, shift, WAY: tl.constexpr):
    """Return the counter of each value whose column is ``where`` (−1: none); ``stride``: words in a row of cells."""
    row = row_of(x, bins, table, below, above, high, scale, origin, shift, WAY)
    row = tl.where(where < 0, bins + 2, row)
    known = (row >= 1) & (row <= bins)
    return row * stride + tl.where(known, where, 0)


@jit()
def add_rows(rows, out, bins, columns, SIZE: tl.constexpr, ALL: tl.constexpr) -> None:
    """Add a program's counts of rows [SIZE] to the result; without ``ALL`` only those outside the bins."""
    r = tl.arange(0, SIZE)
    cell = tl.where(r == 0, bins * columns, bins * columns + r - bins)
    counted = (rows > 0) & (r < bins + 4)  # the row after these holds lanes without a value
    if ALL:
        cell = tl.where((r >= 1) & (r <= bins), r - 1, cell)
    else:
        counted = counted & ((r == 0) | (r > bins))
    tl.atomic_add(out + cell, rows.to(tl.int64), mask=counted, sem="relaxed")


@jit()
def add_cells(counters, out, bins, columns, stride, UNIT: tl.constexpr, LANES: tl.constexpr) -> None:
    """Add a program's counters of cells to the result."""
    for start in range(0, (bins + 4) * stride, UNIT):
        cell = start + tl.arange(0, UNIT)
        found = cells_of(counters, cell, LANES)
        row, column = cell // stride, cell % stride
        counted = (found > 0) & (row < bins + 4) & (column < columns)
        to = (row - 1) * columns + column
        to = tl.where(row > bins, bins * columns + row - bins, tl.where(row == 0, bins * columns, to))
        tl.atomic_add(out + to, found.to(tl.int64), mask=counted, sem="relaxed")
