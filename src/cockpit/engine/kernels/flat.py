"""Counting values that are written out: every program counts its share of tiles, then adds its rows once.

Most grids are counted in shared memory; this is the way in those of more bins.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from torch import Tensor

from cockpit.engine.kernels.counted import counted_block
from cockpit.engine.kernels.index import add_rows, head_of, row_of
from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.rows import Rows

BLOCK = 4096
"""Values in a tile."""
WARPS = 4
PER_PROCESSOR = 8


@jit("tiles", "per_row", "bins")
def _flat(
    values,
    out,
    table,
    tiles,
    per_row,
    width,
    stride,
    bins,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WAY: tl.constexpr,
) -> None:
    below, above, high, scale, origin, shift = head_of(table)
    rows = tl.zeros([SIZE], tl.int32)
    lane = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        start = (tile % per_row).to(tl.int64) * BLOCK
        inside = lane < tl.minimum(width - start, BLOCK).to(tl.int32)
        x = tl.load(values + (tile // per_row).to(tl.int64) * stride + start + lane, mask=inside, other=0.0)
        if x.dtype != tl.float64:
            x = x.to(tl.float32)
        row = row_of(x, bins, table, below, above, high, scale, origin, shift, WAY)
        rows += tl.histogram(tl.where(inside, row, bins + 4), SIZE)
    add_rows(rows, out, bins, 1, SIZE, True)


def count_flat(values: Tensor, rows: Rows, bins: int, out: Tensor) -> None:
    """Add the counts of values [n, m] to ``out`` [bins + EXTRA] int64."""
    if values.is_contiguous():
        values = values.view(1, -1)
    if rows.tallied:
        counted_block(values, (), rows, bins, out)
        return
    n, width = values.shape
    per_row = -(-width // BLOCK)
    with on_device(values):
        _flat[(programs(values, n * per_row, PER_PROCESSOR),)](
            values,
            out,
            rows.table,
            n * per_row,
            per_row,
            width,
            values.stride(0),
            bins,
            SIZE=rows.size,
            BLOCK=BLOCK,
            WAY=rows.way,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
