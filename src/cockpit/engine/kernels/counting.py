"""Histograms on a GPU: the counts of `cockpit.engine.numbers.binning.Counter`, element for element."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.kernels.block import looked_at
from cockpit.engine.kernels.language import runs_on
from cockpit.engine.kernels.outer import count_products
from cockpit.engine.kernels.placed import count_placed
from cockpit.engine.kernels.rows import power_of_two, prepared
from cockpit.engine.numbers.binning import EXTRA, Grid

MOST_ROWS, MOST_PLACED_ROWS, MOST_COLUMNS = 2048, 128, 64
"""Bounds on the tables that a program holds, in registers and shared memory."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def supports(grid: Grid, *tensors: Tensor) -> bool:
    """Say whether the kernels can count these tensors (of one type and device) in this grid."""
    rows = power_of_two(grid.bins + EXTRA + 1)
    fits = rows <= (MOST_PLACED_ROWS if grid.columns > 1 else MOST_ROWS) and grid.columns <= MOST_COLUMNS
    alike = len({(x.dtype, x.device) for x in tensors}) <= 1
    return fits and alike and all(x.dtype in DTYPES and runs_on(x) for x in tensors)


def count(values: Tensor, grid: Grid, place: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Count values [n, m]; ``place`` [m] int32 is the column of each position (−1: none, counted as NaN).

    Returns [bins · columns + EXTRA] int64: new, or ``out`` with the counts added to it.
    """
    out = _counters(grid, values) if out is None else out
    if values.numel():
        rows = prepared(grid, values.dtype == torch.float64, values.device)
        values = _rows_contiguous(values.detach())
        if place is None:
            values = values.view(1, -1) if values.is_contiguous() else values
            looked_at(values, (), rows, grid.bins, out)
        else:
            count_placed(values, None, place.contiguous(), rows, grid.bins, grid.columns, out)
    return out


def count_outer(
    a: Tensor, b: Tensor, grid: Grid, place: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Count all products ``b[n, o] · a[n, i]`` without writing them out; ``place`` is [O · I]. Returns as `count`."""
    out = _counters(grid, a) if out is None else out
    if a.numel() and b.numel():
        rows = prepared(grid, a.dtype == torch.float64, a.device)
        a, b = _rows_contiguous(a.detach()), _rows_contiguous(b.detach())
        if place is None:
            count_products(a, b, rows, grid.bins, out)
        else:
            count_placed(a, b, place.contiguous(), rows, grid.bins, grid.columns, out)
    return out


def _counters(grid: Grid, like: Tensor) -> Tensor:
    return torch.zeros(grid.bins * grid.columns + EXTRA, dtype=torch.int64, device=like.device)


def _rows_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
