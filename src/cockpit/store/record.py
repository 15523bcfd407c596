"""The plain values that flow from a training step into the run: Record, Histogram, Event, and all parameters at once.

A `Record` is one value; a `Column` holds the values of one quantity at one step for the model and for all of its
parameters in one object, so that recording a step costs no Python per parameter; `Columns` hold those of several steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    edges: Edges
    underflow: int = 0
    overflow: int = 0
    nan: int = 0
    inf: int = 0

    @property
    def total(self) -> int:
        """Everything that was counted, inside and outside."""
        return int(self.counts.sum()) + self.underflow + self.overflow + self.nan + self.inf


Edges = npt.NDArray[np.float64] | tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""The bin edges of one axis, or of two."""

Value = float | npt.NDArray[np.float64] | Histogram
"""What a record can hold: a number, an array (shape is kept), or a histogram."""


NONFINITE = "nonfinite: the value is NaN or infinite"
"""The status of a number that is not finite and has no other."""


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


class Numbers(Mapping[str, float]):
    """One number for each parameter; reads like a dictionary of floats.

    Args:
        names: the parameters. The same tuple at every step saves looking it up by its contents.
        array: [P], anything NumPy takes for float64 numbers, or a tensor. It is copied.
    """

    __slots__ = ("_places", "array", "names")

    def __init__(self, names: tuple[str, ...], array: Any) -> None:
        if hasattr(array, "detach"):  # a tensor, of which this module knows nothing else
            array = array.detach().cpu().numpy()
        self.names = names
        self.array: npt.NDArray[np.float64] = np.array(array, dtype=np.float64)
        self._places: dict[str, int] | None = None
        if self.array.shape != (len(names),):
            raise ValueError(f"{len(names)} names for an array of shape {self.array.shape}")

    def __getitem__(self, name: str) -> float:
        if self._places is None:
            self._places = {known: place for place, known in enumerate(self.names)}
        return float(self.array[self._places[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Histograms(Mapping[str, Histogram]):
    """One histogram for each parameter, all with the same edges; reads like a dictionary of histograms.

    Args:
        names: the parameters. The same tuple at every step saves looking it up by its contents.
        counts: integers, [P, bins] or [P, bins_0, bins_1]. Not copied: whoever made them leaves them alone.
        edges: as in `Histogram`, for all of them.
        outside: integers, [P, 4]: underflow, overflow, nan, inf; default: zeros.
    """

    __slots__ = ("_places", "counts", "edges", "names", "outside")

    def __init__(self, names: tuple[str, ...], counts: Any, edges: Edges, outside: Any = None) -> None:
        size = len(names)
        self.names = names
        self.counts: npt.NDArray[np.int64] = _integers(counts)
        self.edges = edges
        self.outside = np.zeros((size, 4), np.int64) if outside is None else _integers(outside)
        self._places: dict[str, int] | None = None
        if self.counts.ndim < 2 or len(self.counts) != size or self.outside.shape != (size, 4):
            shapes = f"{self.counts.shape} and {self.outside.shape}"
            raise ValueError(f"{size} names for counts and outside of shapes {shapes}")

    def __getitem__(self, name: str) -> Histogram:
        if self._places is None:
            self._places = {known: place for place, known in enumerate(self.names)}
        place = self._places[name]
        return Histogram(self.counts[place], self.edges, *self.outside[place].tolist())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True, eq=False)
class Column:
    """The values of one quantity at one step: of the model, and of its parameters all at once.

    ``status`` belongs to ``value``; ``marks`` gives the parameters whose status is not ``"ok"`` (it is not copied, and
    the same object at every step saves looking it up by its contents). Where ``checked``, a parameter's number that is
    not finite is marked as such instead when it is stored.
    """

    # Not frozen: one is made for every quantity at every step, and a frozen one takes four times as long.
    step: int
    name: str
    value: Value | None = None
    status: str = "ok"
    parts: Numbers | Histograms | None = None
    marks: Mapping[str, str] | None = None
    checked: bool = True

    def __len__(self) -> int:
        """How many records it stands for."""
        return (self.value is not None) + (0 if self.parts is None else len(self.parts.names))


NumbersOfSteps = tuple[tuple[str, ...], npt.NDArray[np.float64]]
"""Parameters, and the numbers of all of them at some steps, [S, P]."""


@dataclass(slots=True, eq=False)
class Columns:
    """The values of one quantity at several steps: what a `Column` for each of them would say.

    ``values`` has one for each step, and so has ``statuses`` (None: all are ``"ok"``); ``parts`` are the parameters and
    their numbers [S, P], or a list of the histograms of each step. The rest is as in `Column`.
    """

    steps: tuple[int, ...]
    name: str
    values: Sequence[Value]
    statuses: Sequence[str] | None = None
    parts: NumbersOfSteps | list[Histograms] | None = None
    marks: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        size, parts = len(self.steps), self.parts
        rows = size if parts is None else len(parts[1] if isinstance(parts, tuple) else parts)
        if not size == len(self.values) == rows == (size if self.statuses is None else len(self.statuses)):
            raise ValueError(f"{size} steps, but {len(self.values)} values and parts of {rows}")
        if isinstance(parts, tuple) and parts[1].shape != (size, len(parts[0])):
            raise ValueError(f"{len(parts[0])} names for an array of shape {parts[1].shape}")

    def __len__(self) -> int:
        """How many records it stands for."""
        if isinstance(self.parts, tuple):
            return len(self.steps) * (1 + len(self.parts[0]))
        return len(self.steps) + sum(len(parts.names) for parts in self.parts or ())

    def __iter__(self) -> Iterator[Column]:
        statuses = self.statuses or ("ok",) * len(self.steps)
        for k, (step, value, status) in enumerate(zip(self.steps, self.values, statuses, strict=True)):
            if isinstance(self.parts, tuple):
                names, numbers = self.parts
                parts: Numbers | Histograms | None = Numbers(names, numbers[k])
            else:
                parts = None if self.parts is None else self.parts[k]
            yield Column(step, self.name, value, status, parts, self.marks)


def _integers(values: Any) -> npt.NDArray[np.int64]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.int64)
