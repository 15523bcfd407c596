"""Histograms of values on a CPU, flat and of outer products, by the C kernels: exact, or None where there are none.

Counts equal those of `cockpit.engine.binning.Counter` on the same values, element for element.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from cockpit.engine.binning import Grid
from cockpit.engine.native.grid import Prepared, prepared
from cockpit.engine.native.library import kernel, library, pointer, serves
from cockpit.engine.script import noted

LONGEST = 2**20
"""Numbers of one example in the longest factor of outer products."""


@noted
def count(values: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor | None:
    """Count values [n, m], by the column of each position where ``place`` int32 [m] is given (−1: it has none).

    Returns [bins·columns + 4] int64 like `Counter.result` (what has no column counts as NaN), or None: no compiler, or
    nothing that the kernels know (other types and devices, degenerate or huge grids).
    """
    n, m = values.shape
    return _counted("count", (values,), (n, m), m, grid, place)


@noted
def count_outer(a: Tensor, b: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor | None:
    """Count all products b[n, o] · a[n, i], rounded to their type; ``place`` is int32 [O·I]. Else like `count`."""
    (n, inputs), (examples, outputs) = a.shape, b.shape
    if n != examples:
        raise ValueError(f"{n} examples in a, {examples} in b")
    if max(inputs, outputs) > LONGEST:
        return None
    return _counted("count_outer", (a, b), (n, inputs, outputs), inputs * outputs, grid, place)


@noted
def places(values: Tensor, grid: Grid) -> Tensor | None:
    """Return the bin of each value, int32 [m]; the outer bins take what lies outside, NaN is in none (−1).

    None like `count`.
    """
    if (known := prepared_for((values,), grid)) is None:
        return None
    values = values.detach().contiguous()
    found = torch.empty(values.shape, dtype=torch.int32)
    call = kernel("places", values.dtype)
    call(ctypes.byref(known.native), pointer(values), ctypes.c_int64(values.numel()), pointer(found))
    return found


def prepared_for(x: tuple[Tensor, ...], grid: Grid) -> Prepared | None:
    """Return the grid for values of this type, or None where the kernels do not know it."""
    found, _ = library()
    return prepared(grid, x[0].dtype == torch.float64, found) if found is not None and serves(*x) else None


def _counted(
    name: str,
    x: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    positions: int,
    grid: Grid,
    place: Tensor | None,
) -> Tensor | None:
    if not serves(*x):
        return None
    without = False
    if place is not None:
        place, without = _columns(place, positions, grid.columns)
    columns = grid.columns + without
    known = prepared_for(x, Grid(grid.bins, grid.low, grid.high, columns))
    if known is None:
        return None
    x = tuple(t.detach().contiguous() for t in x)
    table = np.zeros((grid.bins + 4, columns), dtype=np.int64)
    call = kernel(name, x[0].dtype)
    numbers = map(ctypes.c_int64, sizes)
    counters = ctypes.c_void_p(table.ctypes.data)
    failed = call(ctypes.byref(known.native), *map(pointer, x), *numbers, pointer(place), counters)
    if failed:  # no memory
        return None
    if without:
        table[-2, 0] += table[:, -1].sum()
        table = table[:, :-1]
    if columns == 1:
        flat = np.concatenate([table[1:, 0], table[:1, 0]])  # underflow, the first row, comes behind the bins
        flat[-4:] = flat[[-1, -4, -3, -2]]
    else:
        flat = np.concatenate([table[1:-3].ravel(), table[[0, -3, -2, -1]].sum(1)])
    return torch.from_numpy(flat)


def _columns(place: Tensor, positions: int, columns: int) -> tuple[Tensor, bool]:
    """Return the column of each position, one more than there are for those without, and whether there are such.

    The kernels trust these numbers, so they are looked at here.
    """
    if place.dtype != torch.int32 or place.numel() != positions or place.device.type != "cpu":
        raise ValueError(f"place: {positions} int32 numbers on the CPU are needed")
    place = place.contiguous()
    least, greatest = map(int, place.aminmax()) if positions else (0, 0)
    if least < -1 or greatest >= columns:
        raise ValueError(f"place: {least} to {greatest} are not all columns, 0 to {columns - 1}")
    return (torch.where(place < 0, columns, place), True) if least < 0 else (place, False)
