"""The plain values that flow from a training step into the run: Record, Histogram, Event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Histogram:
    """Integer counts between edges; what lies outside or is not finite is counted apart, never lost.

    One dimension: ``counts`` [bins] int64, ``edges`` [bins + 1]; bins are half open, the last one closed.
    Two dimensions: ``counts`` [bins_0, bins_1], ``edges`` a pair. ``underflow`` and ``overflow`` lie outside the
    range of the first axis; values outside the second axis' range are counted in its outer bins.
    """

    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64] | tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    underflow: int = 0
    overflow: int = 0
    nan: int = 0
    inf: int = 0

    @property
    def total(self) -> int:
        """Everything that was counted, inside and outside."""
        return int(self.counts.sum()) + self.underflow + self.overflow + self.nan + self.inf


Value = float | npt.NDArray[np.float64] | Histogram
"""What a record can hold: a number, an array (shape is kept), or a histogram."""


@dataclass(frozen=True, eq=False)
class Record:
    """One value of one quantity at one step; ``scope`` is a parameter's qualified name, or empty for the model.

    ``status`` is ``"ok"`` or begins with one word that says why the value is missing (NaN) or needs care.
    """

    step: int
    name: str
    value: Value
    scope: str = ""
    status: str = "ok"


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened at a step: a gap, a skipped step, non-finite numbers, a resume."""

    step: int
    kind: str
    text: str
    scope: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
