"""Counting values in uniform bins: exact integers, fast on a CPU, nothing lost.

A bin's index is an affine function of the value, computed in float64. Rounded or not, it is monotone, and so is the
index that the edges define: if both agree on the representable numbers next to every edge, they agree everywhere.
That is checked once for given edges. For float32 values it practically always holds; where it does not, values within
rounding of an edge are compared with the edges themselves. So a value falls where the edges say, to the last bit.
Counts are int64 (``torch.histc`` counts in floating point and saturates at $2^{24}$ in float32).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cockpit.engine.numbers.precision import wide_dtype

CPU = torch.device("cpu")
EXTRA = 4
"""Counters behind the bins: underflow, overflow, NaN, infinite."""
CHUNK = 2**17
"""Values counted at once on a CPU: temporaries stay in the cache. Other devices take 2^24 for fewer launches."""


@dataclass(frozen=True)
class Grid:
    """Uniform bins between two ends, by column where every position has one."""

    bins: int
    low: float
    high: float
    columns: int = 1


@lru_cache(maxsize=1024)
def edges(bins: int, low: float, high: float, device: torch.device) -> Tensor:
    """Return the edges of uniform bins, float64 (float32 on devices that have no other); shared, not to be changed."""
    return torch.from_numpy(np.linspace(low, high, bins + 1)).to(device=device, dtype=wide_dtype(device))


@lru_cache(maxsize=64)
def edge_array(bins: int, low: float, high: float) -> npt.NDArray[np.float64]:
    """Return the edges of uniform bins on the host; the same, unchangeable array for the same bins."""
    array = edges(bins, low, high, CPU).numpy().copy()
    array.flags.writeable = False
    return array


def bin_index(x: Tensor, edge: Tensor) -> Tensor:
    """Return each value's bin 0…bins−1, or bins (under), bins+1 (over), bins+2 (NaN), bins+3 (infinite).

    An affine guess corrected by the edges themselves; the plain form that `Counter` is compared with.
    """
    bins = len(edge) - 1
    low, high = edge[0], edge[-1]
    guess = torch.nan_to_num((x - low) * (bins / (high - low))).clamp(0, bins - 1).long()
    guess -= (x < edge[guess]).long()
    guess += ((x >= edge[1:][guess.clamp_min(0)]) & (guess >= 0)).long()
    index = guess.clamp(0, bins - 1)
    index = torch.where(x < low, bins, torch.where(x > high, bins + 1, index))
    return torch.where(x.isnan(), bins + 2, torch.where(x.isinf(), bins + 3, index))


class Ruler:
    """How the rows of values of a type are found between edges: 0 below the range, then the bins, then above it."""

    def __init__(self, edge: Tensor, dtype: torch.dtype) -> None:
        self.edge, self.bins = edge, len(edge) - 1
        self.low, self.high = float(edge[0]), float(edge[-1])
        self.scale = self.bins / (self.high - self.low)
        zero = -self.low * self.scale
        self._zero = round(zero) if abs(zero - round(zero)) < 1e-9 and bool((edge == 0).any()) else None
        near = edge.to(dtype)
        ends = torch.tensor([-torch.inf, torch.inf], dtype=dtype, device=edge.device)
        beside = torch.cat([near, torch.nextafter(near, ends[0]), torch.nextafter(near, ends[1])]).to(edge)
        agree = (self.guess(beside) == self.exact(beside)) | (beside == edge[-1])
        self.sure = bool(agree.all())
        """Whether a guess is right everywhere but at the last edge."""
        reach = (max(abs(self.low), abs(self.high)) + self.high - self.low) * self.scale
        self._tolerance = 4 * torch.finfo(edge.dtype).eps * max(reach, 1.0)

    def guess(self, values: Tensor) -> Tensor:
        """Return rows by the affine function.

        Where zero is an edge, it is counted from there: -1e-30 is on its own side of zero, but not of 2 - 2.
        """
        if self._zero is None:
            index = (values - self.low).mul_(self.scale).add_(1)
        else:
            index = (values * self.scale).floor_().add_(self._zero + 1)
        return index.clamp_(0, self.bins + 1).to(torch.int32)

    def exact(self, values: Tensor) -> Tensor:
        """Return rows by the edges."""
        index = bin_index(values, self.edge)
        row = torch.where(
            index == self.bins, 0, torch.where(index == self.bins + 1, self.bins + 1, index + 1)
        )
        return row.to(torch.int32)

    def unsure(self, values: Tensor) -> Tensor:
        """Return which values are so near to an edge that a guess may be wrong, the closed end among them."""
        index = (values - self.low) * self.scale
        return (index - index.round()).abs_() < self._tolerance


@lru_cache(maxsize=64)
def ruler(edge: Tensor, dtype: torch.dtype) -> Ruler:
    """Return the ruler of shared `edges` (tensors are told apart by which they are): to make one is to try it."""
    return Ruler(edge, dtype)


class Counter:
    """Counts values between edges, by column where each value has one.

    ``counts`` is [(bins + 2)·columns]: for each row (underflow, the bins, overflow) its columns. ``nan`` and
    ``inf`` count values that are not finite.
    """

    def __init__(self, edge: Tensor, dtype: torch.dtype, columns: int = 1) -> None:
        self._ruler, self.bins, self.columns = ruler(edge, dtype), len(edge) - 1, columns
        self.counts = torch.zeros((self.bins + 2) * columns, dtype=torch.int64, device=edge.device)
        self.nan = self.inf = 0

    def add(self, x: Tensor, column: Tensor | None = None) -> None:
        """Count values [n, m]; ``column`` [m] is the column of each position."""
        for values, where in self._chunks(x, column):
            low, high = torch.aminmax(values)
            if not bool(torch.isfinite(low) & torch.isfinite(high)):
                keep = values.isfinite()
                self.nan += int(values.isnan().sum())
                self.inf += int(values.isinf().sum())
                values, where = values[keep], None if where is None else where[keep]
            self._count(values, where)

    def _chunks(self, x: Tensor, column: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        size = CHUNK if x.device.type == "cpu" else 2**24
        rows, width = x.shape
        if not x.numel():
            return
        step = max(1, size // max(1, width))
        for i in range(0, rows, step):
            for j in range(0, width, size):
                part = x[i : i + step, j : j + size]
                if part.numel():
                    where = None if column is None else column[j : j + size].expand(part.shape).reshape(-1)
                    yield part.reshape(-1), where

    def _count(self, values: Tensor, column: Tensor | None) -> None:
        by = self._ruler
        values = values.to(by.edge.dtype)
        row = by.guess(values)
        self._enter(row, column, 1)
        if not by.sure or float(values.amax() if values.numel() else by.low) >= by.high:
            unsure = by.unsure(values)
            theirs = None if column is None else column[unsure]
            self._enter(row[unsure], theirs, -1)
            self._enter(by.exact(values[unsure]), theirs, 1)

    def _enter(self, row: Tensor, column: Tensor | None, sign: int) -> None:
        place = row if column is None else row * self.columns + column
        self.counts += sign * torch.bincount(place, minlength=len(self.counts))

    def result(self) -> Tensor:
        """Return [bins·columns + EXTRA]: the bins, then underflow, overflow, NaN, infinite."""
        table = self.counts.view(self.bins + 2, self.columns)
        outside = [table[0].sum(), table[-1].sum()]
        rest = [torch.tensor(k, dtype=torch.int64, device=table.device) for k in (self.nan, self.inf)]
        return torch.cat([table[1:-1].flatten(), torch.stack([*outside, *rest])])
