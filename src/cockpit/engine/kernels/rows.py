r"""Where a value is counted: the arithmetic that kernels use, chosen and checked on the host once for each grid.

A *row* is 0 below the range, 1…bins in it, then above it, NaN, infinite, and one more for lanes without a value.
Three ways give it. All are monotone in the value, as is the row that the edges define; so a way that agrees with the
edges on the representable numbers beside every edge agrees everywhere (as in `cockpit.engine.binning`):

* ``split``: float32 alone. $x = c + f$ with the 12 leading bits in $c$; for a scale of at most 12 bits $cs$ and $fs$
  are exact, and $\lfloor xs \rfloor = k - [(cs - k) + fs < 0]$ for the integer $k$ nearest to $cs$.
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

from cockpit.engine.binning import EXTRA, Grid

FARTHEST = 1024
"""Largest index that ``split`` computes: up to there $|fs| < 1/2$, so that one comparison is enough."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A grid prepared for values of one type on one device."""

    way: str
    table: Tensor
    """float64: the largest value of the type below the range, below its end, not above its end; scale, origin, shift;
    then the edges."""
    size: int
    """Rows, rounded up to a power of two, at least a warp of them."""


@lru_cache(maxsize=256)
def prepared(grid: Grid, double: bool, device: torch.device) -> Rows:
    """Return the grid for float64 or float32 values; half precisions are counted as float32."""
    kind = np.float64 if double else np.float32
    edge = np.linspace(grid.low, grid.high, grid.bins + 1)
    scale = grid.bins / (edge[-1] - edge[0])
    (zero,) = np.nonzero(edge == 0)
    origin, shift = (0.0, int(zero[0])) if len(zero) else (float(edge[0]), 0)
    near = edge.astype(kind)
    beside = np.concatenate([near, np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))])
    below, cap = _largest_below(edge[0], kind), _largest_below(edge[-1], kind)
    high = float(near[-1]) if near[-1] == edge[-1] else cap
    wide = np.clip(beside, below, cap).astype(np.float64)
    guess = np.floor((wide - origin) * scale) + shift
    # The last edge is closed: kernels see `cap` in its place, which must then be in the last bin.
    sure = bool((guess == np.searchsorted(edge, wide, side="right") - 1).all()) and cap >= edge[-2]
    exact = len(zero) > 0 and _bits(scale) <= 12 and scale >= 1 and grid.bins <= FARTHEST
    way = "edges" if not sure else "split" if exact and not double else "wide"
    table = torch.tensor([below, cap, high, scale, origin, shift, *edge], dtype=torch.float64)
    return Rows(way, table.to(device), power_of_two(grid.bins + EXTRA + 1, 32))


def _largest_below(x: float, kind: Any) -> float:
    near = kind(x)
    return float(near if near < x else np.nextafter(near, kind(-np.inf)))


def _bits(x: float) -> int:
    """Return the length of the significand without trailing zeros."""
    numerator = float(x).as_integer_ratio()[0]
    return (numerator // (numerator & -numerator)).bit_length()


def power_of_two(n: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least ``n`` and ``least``."""
    return max(least, 1 << (n - 1).bit_length())
