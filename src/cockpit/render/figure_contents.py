"""What stands in a figure: instruments by name, their charts, and words about runs. Knows nothing of matplotlib."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Axis, Chart, Plot, View
from cockpit.instruments.instrument import Source
from cockpit.instruments.screens import Screen
from cockpit.instruments.shelf import all_instruments, all_screens
from cockpit.render.status import chart_of


def chosen(instruments: str | Iterable[str] | None) -> list[str]:
    """Return the names that were asked for, all of which exist."""
    names = [instruments] if isinstance(instruments, str) else list(instruments or ())
    for name in names:
        if name not in all_instruments():
            raise CockpitError(_unknown("instrument", name, list(all_instruments())))
    return names


def screen_named(name: str) -> Screen:
    """Return a screen by its name."""
    for screen in all_screens():
        if screen.name == name:
            return screen
    raise CockpitError(_unknown("screen", name, [screen.name for screen in all_screens()]))


def instruments_of(screen: Screen | None) -> list[str]:
    """Return the names of a screen's instruments."""
    columns = [column for row in screen.rows for column in row] if screen else []
    return [name for column in columns for name in column.instruments]


def drawn_chart(name: str, run: Source, view: View, log_steps: bool = False) -> Chart:
    """Return an instrument's chart; that of one that fails says so."""
    chart = chart_of(run, name, view)
    return replace(chart, plots=tuple(map(_log_steps, chart.plots))) if log_steps else chart


def run_name(run: Source) -> str:
    """Return what a run is called: the name of its folder."""
    path = getattr(run, "path", None)
    return path.absolute().name if path is not None else str(run.meta.get("name", "Cockpit"))


def run_labels(runs: Sequence[Source]) -> list[str]:
    """Return the names of runs; those that are alike get numbers, and long ones lose their middle."""
    names = [name if len(name) <= 36 else f"{name[:17]}…{name[-18:]}" for name in map(run_name, runs)]
    return [
        f"{name} ({names[: k + 1].count(name)})" if names.count(name) > 1 else name
        for k, name in enumerate(names)
    ]


def facts(run: Source, view: View) -> str:
    """Return what is worth knowing about a run in one line."""
    meta = run.meta
    groups = meta.get("hyperparameters") or [{}]
    settings = [f"{key} {groups[0][key]:g}" for key in ("lr", "momentum") if groups[0].get(key)]
    optimizer = meta.get("optimizer")
    parts = [meta.get("model"), " ".join([str(optimizer or ""), *settings]).strip(), meta.get("device")]
    last = run.steps()[1] if hasattr(run, "steps") and view.step is None else view.step
    parts += [view.scope, None if last is None else f"step {last}"]
    return "  ·  ".join(str(part) for part in parts if part)


def _log_steps(plot: Plot) -> Plot:
    def log(axis: Axis) -> Axis:
        return replace(axis, scale="symlog", linear=1.0) if axis.steps else axis

    return replace(plot, x=log(plot.x), y=log(plot.y))


def _unknown(kind: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"there is no {kind} {name!r}{meant} There are: {', '.join(known)}."
