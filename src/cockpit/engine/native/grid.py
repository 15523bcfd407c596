"""Uniform bins as the kernels see them: thresholds of the values' own type, and the fastest guess that is exact.

A row is the number of thresholds at or below a value: 0 under the range, then the bins, bins + 1 over it. The kernels
have three ways to guess it from an affine function (``histogram.c``). Each is monotone in the value, as the row itself
is: a way that is right on both sides of every threshold is right everywhere. That is tried once for a grid.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cockpit.engine.numbers.binning import CPU, Grid, edges

LARGEST = 2**22
"""Counters of the largest table."""
WAYS = 3


class Native(ctypes.Structure):
    """The kernels' ``Grid``; what the numbers mean is said there."""

    _fields_ = (
        ("bins", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("way", ctypes.c_int64),
        ("pivot", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("first", ctypes.c_int64),
        ("zero", ctypes.c_int64),
        ("below", ctypes.c_int64),
        ("small", ctypes.c_double),
        ("under", ctypes.c_double),
        ("threshold", ctypes.c_void_p),
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A grid for values of one type; ``threshold`` is what ``native`` points to."""

    native: Native
    threshold: np.ndarray[Any, np.dtype[Any]]


@lru_cache(maxsize=256)
def prepared(grid: Grid, double: bool, library: ctypes.CDLL) -> Prepared | None:
    """Return a grid for float32 or float64 values, or None where the kernels cannot count exactly."""
    if grid.bins < 1 or not np.isfinite(grid.high - grid.low) or (grid.bins + 4) * grid.columns > LARGEST:
        return None
    real = np.float64 if double else np.float32
    edge = edges(grid.bins, grid.low, grid.high, CPU).numpy()
    if not np.all(np.diff(edge) > 0):
        return None
    with np.errstate(all="ignore"):
        threshold = _thresholds(edge, np.dtype(real))
        native = _described(grid, edge, threshold)
        try_rows = library.try_rows_double if double else library.try_rows_float
        return Prepared(native, threshold) if _found_way(native, threshold, try_rows) else None


def _thresholds(edge: Any, dtype: np.dtype[Any]) -> Any:
    """Return −∞, for each edge the smallest number not below it (above it, for the last), +∞."""
    near = edge.astype(dtype)
    raised = near < edge
    raised[-1] = near[-1] <= edge[-1]  # the last bin is closed
    return np.concatenate(
        [[-np.inf], np.where(raised, np.nextafter(near, dtype.type(np.inf)), near), [np.inf]]
    ).astype(dtype)


def _described(grid: Grid, edge: Any, threshold: Any) -> Native:
    real = threshold.dtype.type
    at_zero = np.flatnonzero(edge == 0)
    zero, below = (
        int(np.searchsorted(threshold[1:-1], x, "right")) for x in (real(0), np.nextafter(real(0), real(-1)))
    )
    return Native(
        bins=grid.bins,
        columns=grid.columns,
        pivot=0.0 if len(at_zero) else edge[0],
        scale=grid.bins / (grid.high - grid.low),
        first=at_zero[0] + 1 if len(at_zero) else 1,
        zero=zero,
        below=below,
        small=min(np.nextafter(threshold[zero + 1], real(0)), -threshold[below]),
        under=np.nextafter(threshold[1], real(-np.inf)),
        threshold=threshold.ctypes.data,
    )


def _found_way(native: Native, threshold: Any, try_rows: Any) -> bool:
    """Set the first way that is exact for this grid and fast on this processor."""
    inner = threshold[1:-1]
    beside = np.concatenate([inner, np.nextafter(inner, inner.dtype.type(-np.inf))])
    beside = beside[np.isfinite(beside)]
    true = np.searchsorted(inner, beside, "right")
    row = np.empty(len(beside), np.int32)
    values, rows = ctypes.c_void_p(beside.ctypes.data), ctypes.c_void_p(row.ctypes.data)
    for way in range(0 if native.pivot == 0 else 1, WAYS):
        native.way = way
        slow = try_rows(ctypes.byref(native), values, ctypes.c_int64(len(beside)), rows)
        if not slow and np.array_equal(row, true):
            return True
    return False
