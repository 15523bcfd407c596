"""Finding things in charts."""

from __future__ import annotations

from typing import TypeVar

from cockpit.instruments.chart import Chart, Mark, Reading

M = TypeVar("M", bound=Mark)


def mark(chart: Chart, kind: type[M], label: str = "", place: str = "main") -> M:
    """The first mark of a kind, with a label if one is given."""
    (plot,) = [plot for plot in chart.plots if plot.place == place]
    return next(one for one in plot.marks if isinstance(one, kind) and label in getattr(one, "label", ""))


def marks(chart: Chart, kind: type[M]) -> list[M]:
    return [one for plot in chart.plots for one in plot.marks if isinstance(one, kind)]


def reading(chart: Chart, label: str) -> Reading:
    return next(one for one in chart.readings if one.label == label)
