r"""Where a value is counted: the arithmetic that kernels use, chosen and checked on the host once for each grid.

A *row* is 0 below the range, 1…bins in it, then above it, NaN, infinite, and one more for lanes without a value.
Three ways give it. All are monotone in the value, as is the row that the edges define; so a way that agrees with the
edges on the representable numbers beside every edge agrees everywhere (as in `cockpit.engine.numbers.binning`):

* ``down``: float32 alone, where zero is an edge: $xs + c$ rounded once, downwards, with a constant c so large that the
  numbers around it are the integers, is $\lfloor xs \rfloor + c$.
* ``wide``: $\lfloor (x - o)s \rfloor$ in float64, whose conversions are slower than arithmetic.
* ``edges``: the same, then compared with the two edges next to it; always right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit.engine.kernels.constants import constant
from cockpit.engine.numbers.binning import EXTRA, Grid

LEAST = 128
"""Rows, at least."""
FARTHEST = 2**21
"""Most bins that ``down`` knows: their indices are exact beside the constant."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A grid prepared for values of one type on one device."""

    way: str
    table: Tensor
    """float64: the largest value of the type below the range, the smallest above it, the largest not above it; scale,
    origin, shift; then the edges."""
    size: int
    """Rows, rounded up to a power of two, at least as many as a program has lanes."""


def prepared(grid: Grid, double: bool, device: torch.device) -> Rows:
    """Return the grid for float64 or float32 values; half precisions are counted as float32."""
    way, numbers, size = _prepared(grid, double)
    return Rows(way, constant(numbers, torch.float64, device), size)


@lru_cache(maxsize=256)
def _prepared(grid: Grid, double: bool) -> tuple[str, tuple[float, ...], int]:
    kind = np.float64 if double else np.float32
    edge = np.linspace(grid.low, grid.high, grid.bins + 1)
    scale = grid.bins / (edge[-1] - edge[0])
    (zero,) = np.nonzero(edge == 0)
    origin, shift = (0.0, int(zero[0])) if len(zero) else (float(edge[0]), 0)
    near = edge.astype(kind)
    beside = np.concatenate([near, np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))])
    below, cap = _largest_below(edge[0], kind), _largest_below(edge[-1], kind)
    high = float(near[-1]) if near[-1] == edge[-1] else cap
    above = float(min(np.nextafter(kind(high), kind(np.inf)), np.finfo(kind).max))
    wide = np.clip(beside, below, above).astype(np.float64)
    guess = np.floor((wide - origin) * scale) + shift
    # The last edge is closed: kernels put `high` into the last bin, where it must belong.
    sure = bool((guess == np.searchsorted(edge, wide, side="right") - 1).all()) and cap >= edge[-2]
    exact = len(zero) > 0 and scale < 2.0**100 and float(np.float32(scale)) == scale and grid.bins <= FARTHEST
    way = "edges" if not sure else "down" if exact and not double else "wide"
    numbers = (below, above, high, float(scale), origin, float(shift), *edge.tolist())
    return way, numbers, power_of_two(grid.bins + EXTRA + 1, LEAST)


def _largest_below(x: float, kind: Any) -> float:
    near = kind(x)
    return float(near if near < x else np.nextafter(near, kind(-np.inf)))


def power_of_two(n: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least ``n`` and ``least``."""
    return max(least, 1 << (n - 1).bit_length())
