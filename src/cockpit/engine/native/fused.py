"""Norms, projections and counts of individual gradients on a CPU in one call of C, or None where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.binning import EXTRA, Grid
from cockpit.engine.native.histogram import LONGEST, prepared_for
from cockpit.engine.native.library import array, kernel, pointer, run, serves

Found = tuple[Tensor, Tensor, Tensor | None]
"""Squared norms [N] and products with directions [N, K] in float64, counts [bins + EXTRA] where there is a grid."""


def block_statistics(block: Tensor, directions: Sequence[Tensor], grid: Grid | None) -> Found | None:
    """Look at gradients that are written out, [N, D], with directions [D]."""
    return _looked("block_statistics", (block,), block.shape, directions, grid)


def outer_statistics(a: Tensor, b: Tensor, directions: Sequence[Tensor], grid: Grid | None) -> Found | None:
    r"""Look at gradients $b_n a_n^\top$ with factors [N, I] and [N, O], and directions [O, I]."""
    if max(a.shape[1], b.shape[1]) > LONGEST:
        return None
    return _looked("outer_statistics", (a, b), (*a.shape, b.shape[1]), directions, grid)


def _looked(
    name: str, x: tuple[Tensor, ...], sizes: Sequence[int], directions: Sequence[Tensor], grid: Grid | None
) -> Found | None:
    if not serves(*x, *directions) or not all(t.is_contiguous() for t in (*x, *directions)):
        return None
    known = None if grid is None else prepared_for(x, grid)
    if grid is not None and (known is None or grid.columns != 1):
        return None
    sums = torch.empty(1 + len(directions), sizes[0], dtype=torch.float64)
    counts = None if grid is None else torch.empty(grid.bins + EXTRA, dtype=torch.int64)
    failed = run(
        kernel(name, x[0].dtype),
        None if known is None else ctypes.byref(known.native),
        *map(pointer, x),
        *map(ctypes.c_int64, sizes),
        array(ctypes.c_void_p, [v.data_ptr() for v in directions]),
        ctypes.c_int64(len(directions)),
        pointer(sums),
        pointer(counts),
        kept=(x, directions, known, sums, counts),
    )
    return None if failed else (sums[0], sums[1:].T, counts)
