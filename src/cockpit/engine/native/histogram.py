"""Histograms of values on a CPU, flat and of outer products, by the C kernels: exact, or None where there are none.

Counts equal those of `cockpit.engine.numbers.binning.Counter` on the same values, element for element.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from cockpit.engine.native.grid import Prepared, prepared
from cockpit.engine.native.library import kernel, library, pointer, run, serves
from cockpit.engine.numbers.binning import EXTRA, Grid

LONGEST = 2**20
"""Numbers of one example in the longest factor of outer products."""
NO_COLUMN = 2
"""What the kernels return where places hold what is no column."""


def count(values: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor | None:
    """Count values [n, m], by the column of each position where ``place`` int32 [m] is given (−1: it has none).

    Returns [bins·columns + 4] int64 like `Counter.result` (what has no column counts as NaN), or None: no compiler, or
    nothing that the kernels know (other types and devices, degenerate or huge grids).
    """
    n, m = values.shape
    return _counted("counted", (values,), (n, m), m, grid, place)


def count_outer(a: Tensor, b: Tensor, grid: Grid, place: Tensor | None = None) -> Tensor | None:
    """Count all products b[n, o] · a[n, i], rounded to their type; ``place`` is int32 [O·I]. Else like `count`."""
    (n, inputs), (examples, outputs) = a.shape, b.shape
    if n != examples:
        raise ValueError(f"{n} examples in a, {examples} in b")
    if max(inputs, outputs) > LONGEST:
        return None
    return _counted("counted_outer", (a, b), (n, inputs, outputs), inputs * outputs, grid, place)


def places(values: Tensor, grid: Grid) -> Tensor | None:
    """Return the bin of each value, int32 [m]; the outer bins take what lies outside, NaN is in none (−1).

    None like `count`.
    """
    if (known := prepared_for((values,), grid)) is None:
        return None
    values = values.detach().contiguous()
    found = torch.empty(values.shape, dtype=torch.int32)
    native, size = ctypes.byref(known.native), ctypes.c_int64(values.numel())
    run(
        kernel("places", values.dtype),
        native,
        pointer(values),
        size,
        pointer(found),
        kept=(values, known, found),
    )
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
    if (known := prepared_for(x, grid)) is None:
        return None
    if place is not None and (place.dtype != torch.int32 or place.numel() != positions or not place.is_cpu):
        raise ValueError(f"place: {positions} int32 numbers on the CPU are needed")
    x = tuple(t.detach().contiguous() for t in x)
    place = None if place is None else place.contiguous()
    found = torch.empty(grid.bins * grid.columns + EXTRA, dtype=torch.int64)
    failed = run(
        kernel(name, x[0].dtype),
        ctypes.byref(known.native),
        *map(pointer, x),
        *map(ctypes.c_int64, sizes),
        pointer(place),
        pointer(found),
        kept=(x, place, known, found),
    )
    if failed == NO_COLUMN:
        raise ValueError(f"place: some of these numbers are no columns, 0 to {grid.columns - 1}")
    return None if failed else found  # no memory
