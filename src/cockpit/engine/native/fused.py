"""Norms, projections and counts of individual gradients on a CPU in one call of C, or None where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.native.histogram import LONGEST, prepared_for
from cockpit.engine.native.library import array, kernel, pointer, run, serves
from cockpit.engine.numbers.binning import EXTRA, Grid

Found = tuple[Tensor, Tensor, Tensor | None]
"""Squared norms [N] and products with directions [N, K] in float64, counts [bins + EXTRA] where there is a grid."""


PIECE = 2**13
"""Numbers that are multiplied at a time; the kernel has the same."""


def block_statistics(
    block: Tensor, directions: Sequence[Tensor], grid: Grid | None, factor: float = 1.0
) -> Found | None:
    """Look at gradients that are written out, [N, D], times a factor, with directions [D]."""
    if factor != 1 and block.shape[1] > PIECE:
        block, factor = block * factor, 1.0
    sizes = (ctypes.c_double(factor), *map(ctypes.c_int64, block.shape))
    return _looked("block_statistics", (block,), sizes, directions, grid)


def outer_statistics(a: Tensor, b: Tensor, directions: Sequence[Tensor], grid: Grid | None) -> Found | None:
    r"""Look at gradients $b_n a_n^\top$ with factors [N, I] and [N, O], and directions [O, I]."""
    if max(a.shape[1], b.shape[1]) > LONGEST:
        return None
    sizes = tuple(map(ctypes.c_int64, (*a.shape, b.shape[1])))
    return _looked("outer_statistics", (a, b), sizes, directions, grid)


def _looked(
    name: str, x: tuple[Tensor, ...], sizes: tuple[Any, ...], directions: Sequence[Tensor], grid: Grid | None
) -> Found | None:
    if not serves(*x, *directions) or not all(t.is_contiguous() for t in (*x, *directions)):
        return None
    known = None if grid is None else prepared_for(x, grid)
    if grid is not None and (known is None or grid.columns != 1):
        return None
    sums = torch.empty(1 + len(directions), len(x[0]), dtype=torch.float64)
    counts = None if grid is None else torch.empty(grid.bins + EXTRA, dtype=torch.int64)
    failed = run(
        kernel(name, x[0].dtype),
        None if known is None else ctypes.byref(known.native),
        *map(pointer, x),
        *sizes,
        array(ctypes.c_void_p, [v.data_ptr() for v in directions]),
        ctypes.c_int64(len(directions)),
        pointer(sums),
        pointer(counts),
        kept=(x, directions, known, sums, counts),
    )
    return None if failed else (sums[0], sums[1:].T, counts)
