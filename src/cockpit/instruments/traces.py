"""Reading a quantity for an instrument: the stretch that is shown, thinned out, and what was wrong with it in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import numpy as np

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Axis, Floats, Line, Reading, Ticks, Tone, View
from cockpit.instruments.instrument import Missing, Source
from cockpit.instruments.thinning import kept, unrecorded
from cockpit.store.codec import Ints
from cockpit.store.series import Series
from cockpit.store.status import Status, Texts

Join = Literal["norms", "sums", "single"]
"""How parameters make up a layer: root of the sum of squares, sum, or not at all."""

STEPS = Axis("Step", steps=True)

GROUPS = 40
"""So many ticks are shown at most; more are put together."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Values of a quantity at ascending steps, and their statuses."""

    name: str
    steps: Ints
    values: Floats
    status: Sequence[str]

    @cached_property
    def unrecorded(self) -> Ints:
        """The positions after which steps are missing."""
        return unrecorded(self.steps)[:GROUPS]

    def place(self, step: int | None = None) -> int:
        """Return the position of the value shown at a moment: the nearest at or before it, else the first."""
        last = len(self.steps) if step is None else int(np.searchsorted(self.steps, step, side="right"))
        return max(0, last - 1)

    def until(self, step: int | None) -> Trace:
        """Return the values up to a moment, at least the first."""
        end = self.place(step) + 1
        return Trace(self.name, self.steps[:end], self.values[:end], self.status[:end])

    def reading(self, label: str, step: int | None = None) -> Reading:
        """Return the value at a moment; None: the newest."""
        place = self.place(step)
        value, status = float(self.values[place]), self.status[place]
        word = "" if np.isfinite(value) or status == "ok" else status.partition(":")[0].replace("_", " ")
        return Reading(label, value, word.replace("nonfinite", "not finite") or number(value))

    def line(
        self,
        label: str,
        view: View,
        tone: Tone = "first",
        right: bool = False,
        smooth: bool = True,
        dots: bool = False,
    ) -> Line:
        """Return a line of at most ``view.points`` points that keeps extremes, and gaps worth seeing."""
        places = kept(self.values, view.points)
        x, y = self.steps[places].astype(np.float64), self.values[places]
        y = np.where(np.isfinite(y), y, np.nan)
        gaps = self.unrecorded
        after = np.searchsorted(places, gaps, side="right")
        x = np.insert(x, after, 0.5 * (self.steps[gaps] + self.steps[gaps + 1]))
        return Line(label, x, np.insert(y, after, np.nan), tone, right, smooth, dots=dots)

    def ticks(self) -> tuple[Ticks, ...]:
        """Return where values are not finite, and where none were recorded."""
        found = []
        bad = np.flatnonzero(~np.isfinite(self.values))
        if len(bad):
            breaks = np.flatnonzero(np.diff(bad) != 1) + 1
            groups = np.split(bad, breaks) if len(breaks) < GROUPS else np.array_split(bad, GROUPS)
            texts = tuple(self._text(group) for group in groups)
            found.append(Ticks("not a number", _floats(self.steps[group[0]] for group in groups), texts))
        gaps = self.unrecorded
        if len(gaps):
            ends = zip(self.steps[gaps].tolist(), self.steps[gaps + 1].tolist(), strict=True)
            words = tuple(f"no {self.name} between steps {first} and {last}" for first, last in ends)
            found.append(Ticks("not recorded", _floats(self.steps[gaps]), words, "neutral"))
        return tuple(found)

    def _text(self, group: Ints) -> str:
        first, last, status = self.steps[group[0]], self.steps[group[-1]], self.status[int(group[0])]
        word = f"{self.name}: {status if status != 'ok' else 'not finite'}"
        return f"step {first}, {word}" if len(group) == 1 else f"steps {first}–{last} ({len(group)}), {word}"

    def notes(self, prefix: str = "") -> tuple[str, ...]:
        """Say which statuses other than ok there are, and how often."""
        kinds: dict[str, Counter[str]] = {}
        for text, times in Texts.of(self.status).counts().items():
            if text != "ok":
                kinds.setdefault(text.partition(":")[0], Counter())[text] += times
        notes = []
        for word, texts in kinds.items():
            example = texts.most_common(1)[0][0]
            said = example if len(texts) == 1 else f"{word} (for example: {example.partition(': ')[2]})"
            notes.append(f"{prefix}{said} at {texts.total()} of {len(self.steps)} steps")
        return tuple(notes)


def trace(run: Source, name: str, view: View, join: Join = "single") -> Trace:
    """Return a quantity between ``view.first`` and ``view.last``, of the model, a parameter or a layer.

    Raises `Missing` where there is nothing to show.
    """
    parts = run.all_series(name, scopes(run, name, view.scope, join), view.first or 0)
    if not all(isinstance(part.values, np.ndarray) for part in parts):
        raise CockpitError(f'"{name}" is no series of numbers')
    steps, values, status = _joined(parts, join)
    end = len(steps) if view.last is None else int(np.searchsorted(steps, view.last, side="right"))
    if not end:
        raise Missing(f'There is no "{name}" between the steps shown.')
    return Trace(name, steps[:end], values[:end], status[:end])


def scopes(run: Source, name: str, scope: str, join: Join) -> list[str]:
    """Return the scopes that make up what is asked for: itself, or the parameters below a layer."""
    there = run.scopes(name)
    if scope in there:
        return [scope]
    below = [one for one in there if scope and one.startswith(scope + ".")]
    if below and join == "single":
        raise Missing(
            f'"{name}" of a layer is not the sum of its parameters. Choose one of: {", ".join(below)}.'
        )
    if not below:
        what = f"of {scope!r}" if scope else "of the whole model"
        raise Missing(f'This run has no "{name}" {what}.')
    return below


def _joined(parts: list[Series], join: Join) -> tuple[Ints, Floats, Sequence[str]]:
    """Put the parameters of a layer together, at the steps that all of them have."""
    if len(parts) == 1:
        return parts[0].steps, np.asarray(parts[0].values), parts[0].status
    steps = reduce(np.intersect1d, (part.steps for part in parts))
    places = [np.searchsorted(part.steps, steps) for part in parts]
    table = np.stack([np.asarray(part.values)[at] for part, at in zip(parts, places, strict=True)])
    values = np.sqrt((table**2).sum(0)) if join == "norms" else table.sum(0)
    found = [
        (Texts.of(part.status).status.take(at), len(steps)) for part, at in zip(parts, places, strict=True)
    ]
    codes, words = Status.join(found)
    if codes is not None:  # of several that are not ok, the first parameter's
        codes = codes.reshape(len(parts), len(steps))
        codes = codes[(codes != 0).argmax(0), np.arange(len(steps))]
    return steps, values, Texts(Status(codes, words), len(steps))


def axis(label: str, *lines: Line, log: bool = False) -> Axis:
    """Return the axis for lines: linear, unless they spread over more than two decades or ``log`` is asked for.

    Where some values are not positive the logarithm becomes symmetric, linear around zero.
    """
    values = np.abs(np.concatenate([line.y for line in lines]))
    sizes = values[np.isfinite(values) & (values > 0)]
    signed = any(bool((line.y <= 0).any()) for line in lines)
    if not len(sizes) or not (log or np.quantile(sizes, 0.99) > 100 * np.quantile(sizes, 0.01)):
        return Axis(label)
    return Axis(label, "symlog", linear=float(np.quantile(sizes, 0.1))) if signed else Axis(label, "log")


def number(value: float, form: str = ".3g") -> str:
    """Return a number as it is read off an instrument.

    >>> [number(value) for value in (-0.25, 1234.5, 2e-05, float("nan"))]
    ['−0.25', '1.23e3', '2e−5', 'not finite']
    """
    if not np.isfinite(value):
        return "not finite"
    mantissa, _, exponent = format(value, form).partition("e")
    return (mantissa + (f"e{int(exponent)}" if exponent else "")).replace("-", "−")


def share(part: float) -> str:
    """Return a share in per cent."""
    return number(100 * part) + " %"


def _floats(numbers: object) -> Floats:
    return np.array(list(numbers), dtype=np.float64)  # type: ignore[call-overload]
