"""Counting elements in bins, by the fastest way there is on the device; all ways give the same counts."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from cockpit.engine import kernels, native
from cockpit.engine.kernels.trial import tried
from cockpit.engine.numbers.binning import Counter, Grid, bin_index, edges
from cockpit.engine.scripts.script import noted

CHUNK = 2**22
"""How many products are written out at once where no kernel counts them unseen."""


def count(values: Tensor, grid: Grid, place: Tensor | None = None, fast: bool = True) -> Tensor:
    """Count values [n, m]; ``place`` [m] is the column of each position (−1: none, counted as NaN).

    Returns [bins · columns + EXTRA] int64. Not ``fast``: by torch alone, the plain way that the others are tested with.
    """
    if fast and values.device.type == "cpu" and (found := native.count(values, grid, place)) is not None:
        return found
    if fast and kernels.supports(grid, values):
        found = tried("count", partial(kernels.count, values, grid, place))
        if found is not None:
            return found
    return _count_by_torch(values, grid, place)


def count_outer(a: Tensor, b: Tensor, grid: Grid, place: Tensor | None = None, fast: bool = True) -> Tensor:
    """Count all products ``b[n, o] · a[n, i]``; ``place`` is [O · I]. Else like `count`."""
    if fast and a.device.type == "cpu" and (found := native.count_outer(a, b, grid, place)) is not None:
        return found
    if fast and kernels.supports(grid, a, b):
        found = tried("outer", partial(kernels.count_outer, a, b, grid, place))
        if found is not None:
            return found
    return _count_outer_by_torch(a, b, grid, place)


def places(values: Tensor, grid: Grid, fast: bool = True) -> Tensor:
    """Return the bin of each value [m], int32; the outer bins take what lies outside, NaN is in none (−1)."""
    if fast and values.device.type == "cpu" and (found := native.places(values, grid)) is not None:
        return found
    place = bin_index(values, edges(grid.bins, grid.low, grid.high, values.device))
    place = torch.where((place == grid.bins) | values.isneginf(), 0, place.clamp_max(grid.bins - 1))
    return torch.where(values.isnan(), -1, place).to(torch.int32)


@noted  # a counter looks at values
def _count_by_torch(values: Tensor, grid: Grid, place: Tensor | None) -> Tensor:
    counter = _counter(values, grid)
    _add(counter, values, place)
    return counter.result()


@noted
def _count_outer_by_torch(a: Tensor, b: Tensor, grid: Grid, place: Tensor | None) -> Tensor:
    counter = _counter(a, grid)
    step = max(1, CHUNK // max(1, a.shape[1] * b.shape[1]))
    for i in range(0, len(a), step):
        products = b[i : i + step, :, None] * a[i : i + step, None, :]
        _add(counter, products.flatten(1), place)
    return counter.result()


def _counter(values: Tensor, grid: Grid) -> Counter:
    return Counter(edges(grid.bins, grid.low, grid.high, values.device), values.dtype, grid.columns)


def _add(counter: Counter, values: Tensor, place: Tensor | None) -> None:
    known = None if place is None else place >= 0
    if place is None or known is None or bool(known.all()):
        counter.add(values, place)
    else:
        counter.nan += int((~known).sum()) * len(values)
        counter.add(values[:, known], place[known])
