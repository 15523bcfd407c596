"""A run at a glance, as the terminal and a notebook show it: where it is, and one row for each instrument."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cockpit.instruments.chart import Axis, Bars, Chart, Floats, Heat, Line, Plot, View
from cockpit.instruments.instrument import Source
from cockpit.instruments.overview import run_card
from cockpit.instruments.screens import SCREENS, Screen
from cockpit.instruments.shelf import instrument
from cockpit.store.record import Event
from cockpit.store.run import Run

POINTS = 200
"""How many points a curve of a few centimetres needs."""
WAITING = "waiting for the first step"


@dataclass(frozen=True, eq=False)
class Row:
    """One instrument: what can be read off it, and its course as heights (NaN is a gap), not yet scaled.

    ``reading`` is the first number; ``note`` says which one it is, then the others and what is remarkable, or else the
    question. Of an instrument without data (``missing``) it says how to turn it on.
    """

    name: str
    heading: str
    title: str
    reading: str
    course: Floats
    note: str
    missing: bool = False


@dataclass(frozen=True, eq=False)
class Status:
    """Where a run is; what is not known is None. ``total`` is how many steps there will be."""

    name: str
    life: str
    step: int | None = None
    total: int | None = None
    seconds: float | None = None
    rate: float | None = None
    loss: float | None = None
    overhead: float | None = None
    rows: tuple[Row, ...] = ()
    events: tuple[Event, ...] = ()


def status(run: Run, now: float, screen: Screen = SCREENS[0], events: int = 3) -> Status:
    """Return where a run is, with the instruments of a screen and its newest events; ``now`` is Unix time."""
    card = run_card(run, "")
    started, ended, step = card["started"], card["ended"], card["last_step"]
    # a process that died has no end; only while it lives does time go on
    until = ended if ended is not None else now if card["status"] == "running" else None
    seconds = max(0.0, until - started) if started is not None and until is not None else None
    return Status(
        name=card["name"],
        life=card["status"],
        step=step,
        seconds=seconds,
        rate=(step + 1) / seconds if seconds and step is not None else None,
        loss=card["loss"],
        overhead=card["overhead"],
        rows=tuple(rows(run, screen)),
        events=tuple(run.events()[-events:]) if events else (),
    )


def rows(run: Source, screen: Screen = SCREENS[0]) -> Iterator[Row]:
    """Return a row for each instrument of a screen, in its order."""
    begun = bool(run.names())
    for column in (column for line in screen.rows for column in line):
        for name in column.instruments:
            drawn = chart_of(run, name, View(points=POINTS))
            reading = drawn.readings[0].text if drawn.readings else ""
            note = _note(drawn) if begun else WAITING
            yield Row(name, column.title, drawn.title, reading, course(drawn), note, bool(drawn.missing))


def _note(chart: Chart) -> str:
    first = [reading.label for reading in chart.readings[:1] if reading.label.lower() != chart.title.lower()]
    others = [f"{reading.label} {reading.text}" for reading in chart.readings[1:]]
    return chart.missing or "; ".join((*first, *others, *chart.notes)) or chart.question


def chart_of(run: Source, name: str, view: View) -> Chart:
    """Return what an instrument shows; if it fails, a chart that says so."""
    return instrument(name).drawn(run, view)


def course(chart: Chart) -> Floats:
    """Return what a chart looks like as one row of heights: its first line over the steps, or else its bars."""
    plots = sorted(chart.plots, key=lambda plot: plot.place != "main")
    for plot in plots:
        line = next((mark for mark in plot.marks if isinstance(mark, Line) and plot.x.steps), None)
        if line is not None:
            return _scaled(line.y, _axis(plot, line.right))
    for plot in plots:
        bars = next((mark for mark in plot.marks if isinstance(mark, Bars)), None)
        if bars is not None:
            return _scaled(bars.heights, plot.x if bars.flat else _axis(plot, bars.right))
    for plot in plots:
        heat = next((mark for mark in plot.marks if isinstance(mark, Heat)), None)
        if heat is not None:
            return _scaled(np.nansum(heat.values, axis=0), Axis(scale=heat.scale))
    return np.empty(0)


def _axis(plot: Plot, right: bool) -> Axis:
    return plot.right if right and plot.right is not None else plot.y


def _scaled(values: Floats, axis: Axis) -> Floats:
    """Return values as heights on an axis; what has no place there is a gap."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if axis.scale == "log":
            heights = np.log10(values)
        elif axis.scale == "symlog":
            heights = np.arcsinh(values / axis.linear)
        else:
            heights = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(heights), heights, np.nan)


def thinned(heights: Floats, places: int) -> Floats:
    """Return at most so many heights between 0 and 1: means of equal stretches; a stretch of gaps is a gap."""
    if not len(heights):
        return heights
    parts = np.array_split(heights, min(len(heights), places))
    means = np.array([part[~np.isnan(part)].mean() if not np.isnan(part).all() else np.nan for part in parts])
    if np.isnan(means).all():
        return means
    low, high = np.nanmin(means), np.nanmax(means)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # means of equal numbers differ in their last digits
        return np.where(np.isnan(means), np.nan, 0.0)
    scaled: Floats = (means - low) / (high - low)
    return scaled
