"""Instrument: a question about a training, and the chart that answers it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Chart, Plot, Reading, View
from cockpit.naming import snake_case
from cockpit.presets import PRESETS
from cockpit.store.record import Event
from cockpit.store.series import Series

Group = Literal[
    "step size", "gradients", "curvature", "hyper-parameters", "performance", "auxiliary", "layers"
]
"""The part of the screen an instrument stands in."""


class Missing(Exception):  # noqa: N818 - no error: an answer
    """What was asked for is not in the run; the text says what, and how to have it."""


class Source(Protocol):
    """What instruments read: a `Run`, or whatever answers like one."""

    def names(self) -> list[str]:
        """Return the names of all quantities."""

    def scopes(self, name: str) -> list[str]:
        """Return the scopes of a quantity, the model ("") first."""

    def series(self, name: str, scope: str = "", since: int = 0, points: int | None = None) -> Series:
        """Return the values of a quantity."""

    def all_series(self, name: str, scopes: Sequence[str] | None = None, since: int = 0) -> list[Series]:
        """Return the values of a quantity for many scopes, for all there are if None."""

    def events(self, kind: str | None = None) -> list[Event]:
        """Return what happened."""

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about the run as a whole."""


class Instrument(ABC):
    """One panel of the cockpit: declares what it reads, returns a chart, touches nothing.

    The first sentence of a subclass's docstring is its tooltip, the section "Reading it:" its help.

    Attributes:
        title: stands above the panel.
        question: what it answers, as a question.
        reads: the quantities it draws.
        optional: those of them without which it can still draw something; if all are, one of them must be there.
        group: the part of the screen it stands in.
        moment: it shows one step at a time, so that a slider moves it.
        layered: it can be asked for a single parameter or layer.
    """

    title: ClassVar[str]
    question: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    group: ClassVar[Group]
    moment: ClassVar[bool] = False
    layered: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The word by which it is found: its class in snake case."""
        return snake_case(type(self).__name__)

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return _sections(self)[0]

    @property
    def reading(self) -> str:
        """How to read it: paragraphs of plain text."""
        return _sections(self)[1]

    def chart(self, run: Source, view: View = View()) -> Chart:  # noqa: B008 - a frozen value
        """Return what it shows, or a chart that says what is missing and how to turn it on."""
        there = set(run.names())
        absent = [name for name in self.reads if name not in there]
        needed = [name for name in absent if name not in self.optional]
        if needed or len(absent) == len(self.reads):
            return self.made(missing=_missing(needed or absent[:1]), scope=view.scope)
        try:
            return self.draw(run, view)
        except Missing as gap:
            return self.made(missing=str(gap), scope=view.scope)

    def drawn(self, run: Source, view: View, why: Callable[[Exception], str] | None = None) -> Chart:
        """Return what it shows, or a chart that says why that failed: one must not take the others with it.

        ``why`` puts an error into words.
        """
        try:
            return self.chart(run, view)
        except Exception as error:  # a plugin's mistake, a damaged file, or numbers nobody thought of
            said = str(error) if isinstance(error, CockpitError) else f"{type(error).__name__}: {error}"
            text = f"This instrument could not be drawn: {why(error) if why is not None else said}"
            return self.made(missing=text, scope=view.scope)

    @abstractmethod
    def draw(self, run: Source, view: View) -> Chart:
        """Return the chart of a run that has what is needed; use `made`. May raise `Missing`."""

    def made(
        self,
        plots: tuple[Plot, ...] = (),
        readings: tuple[Reading, ...] = (),
        notes: tuple[str, ...] = (),
        missing: str = "",
        step: int | None = None,
        scope: str = "",
    ) -> Chart:
        """Return a chart under this instrument's name and title."""
        return Chart(self.name, self.title, self.question, plots, readings, notes, missing, step, scope)


def _missing(names: list[str]) -> str:
    """Say what was not recorded, and what to write to have it."""
    if names == ["learning_rate"]:
        return 'This run has no "learning_rate" so far. It comes by itself with the first watched step.'
    listed = " and ".join(f'"{name}"' for name in names)
    preset = next((preset for preset, members in PRESETS.items() if set(names) <= set(members)), None)
    use = (
        f'Cockpit(config="{preset}")' if preset else f"Cockpit(quantities=[{', '.join(map(repr, names))}, …])"
    )
    return f"This run has no {listed} so far. To record it: {use}."


def _sections(instrument: Instrument) -> tuple[str, str]:
    """Return the first paragraph of the docstring, and its section "Reading it"."""
    text = inspect.getdoc(type(instrument)) or ""
    first, _, rest = text.partition("\n\n")
    _, _, reading = rest.partition("Reading it:")
    paragraphs = [" ".join(part.split()) for part in reading.split("\n\n")]
    return " ".join(first.split()), "\n\n".join(part for part in paragraphs if part)
