"""Series: the values of one quantity over the steps, as a reader gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cockpit.errors import CockpitError
from cockpit.store.codec import Floats, Ints
from cockpit.store.points import Points
from cockpit.store.record import Value
from cockpit.store.status import Texts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Series:
    """Steps in ascending order, one value and one status each.

    ``values`` is a float64 array where all values are numbers; else a list of histograms or arrays, in which
    a gap is a NaN.
    """

    name: str
    scope: str
    steps: Ints
    values: Floats | list[Value]
    status: Sequence[str]

    def __len__(self) -> int:
        return len(self.steps)

    def to_numpy(self) -> tuple[Ints, npt.NDArray[Any]]:
        """Return (steps, values); histograms, and arrays of different shapes, come in an array of objects."""
        values = self.values
        if isinstance(values, np.ndarray):
            return self.steps, values
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        if len(arrays) == len(values) and len({array.shape for array in arrays}) == 1:
            return self.steps, np.stack(arrays)
        objects = np.empty(len(values), dtype=object)
        for k, value in enumerate(values):  # a plain assignment would try to broadcast arrays
            objects[k] = value
        return self.steps, objects

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with the columns value and status, indexed by step."""
        values = self.values if isinstance(self.values, np.ndarray) else list(self.values)
        index = pandas().Index(self.steps, name="step")
        frame: pd.DataFrame = pandas().DataFrame({"value": values, "status": list(self.status)}, index=index)
        return frame


def as_series(name: str, scope: str, found: Points, points: int | None = None) -> Series:
    """Return numbers as a series, of at most so many points."""
    if points is not None:
        found = found.take(extremes(found.values, points))
    return Series(name, scope, found.steps, found.values, Texts(found.status, len(found.steps)))


def pandas() -> Any:
    """Return the pandas module, which is an optional extra."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise CockpitError("to_pandas needs pandas: pip install 'cockpit-debugger[pandas]'") from error


def extremes(values: Floats, points: int) -> Ints:
    """Return at most ``points`` positions such that the smallest and largest value of every stretch survive.

    The range is cut into at most ``points // 2`` stretches of equal length and each keeps its minimum and its
    maximum. A NaN counts as the largest value, so no stretch hides one.
    """
    count = len(values)
    if count <= points:
        return np.arange(count)
    if points < 2:
        return np.arange(count - points, count)
    size = -(-count // (points // 2))
    whole = count // size
    kept = [_ends(values[: whole * size].reshape(whole, size))]
    if whole * size < count:
        kept.append(_ends(values[None, whole * size :]) + whole * size)
    return np.unique(np.concatenate(kept))


def _ends(stretches: Floats) -> Ints:
    """Return the positions of the smallest and the largest value of every row, counted through all of them."""
    largest, smallest = stretches.argmax(1), stretches.argmin(1)  # the first NaN, if there is one
    broken = np.flatnonzero(np.isnan(stretches[np.arange(len(stretches)), largest]))
    if len(broken):
        rows = stretches[broken]
        smallest[broken] = np.where(np.isnan(rows), np.inf, rows).argmin(1)
    starts = np.arange(len(stretches)) * stretches.shape[1]
    return np.concatenate([smallest + starts, largest + starts])
