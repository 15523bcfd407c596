"""How far the axes of a chart reach, and charts whose axes stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from cockpit.instruments.chart import (
    Axis,
    Band,
    Bars,
    Chart,
    Disc,
    Floats,
    Guide,
    Heat,
    Line,
    Mark,
    Plot,
    Ticks,
)

Side = Literal["x", "y", "right"]
Reach = tuple[float, float]

MARGIN = 0.05
"""Room beyond the data, as a share of their reach."""


def axis_of(plot: Plot, side: Side) -> Axis:
    """Return one of a plot's axes; the right one of a plot without has no settings."""
    if side == "right":
        return plot.right or Axis()
    return plot.x if side == "x" else plot.y


def reach(plot: Plot, side: Side) -> Reach | None:
    """Return from where to where an axis goes: the range it asks for, or what its marks need; None without any.

    A log axis that has no positive number to show has no reach.
    """
    axis = axis_of(plot, side)
    if axis.range is not None and (axis.scale != "log" or min(axis.range) > 0):
        return axis.range
    if axis.names:
        return 0.0, float(len(axis.names))
    found = [part for mark in plot.marks for part in _numbers(mark, side)]
    numbers = np.concatenate([*found, np.empty(0)])
    numbers = numbers[np.isfinite(numbers)]
    if axis.scale == "log":
        numbers = numbers[numbers > 0]
    if not len(numbers):
        return None
    low, high = _with_guides(plot, side, float(numbers.min()), float(numbers.max()))
    tight = axis.steps or any(_fills(mark, side) for mark in plot.marks)
    return _wider(low, high, axis, 0.0 if tight else MARGIN)


def pinned(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts with the same axes: each reaches as far as in the chart that needs most.

    For charts of one instrument, at several moments or of several runs. Scales are those of the last one that has all
    plots, except that a symmetric one is needed wherever one of the charts needs it. Of many charts the first tenth
    does not count: shares of the first few steps would make all later ones small.
    """
    model = max(charts, key=lambda chart: (len(chart.plots), charts.index(chart)), default=None)
    if model is None:
        return []
    counted = [*charts[len(charts) // 10 :], model]
    plots = [[one.plots[k] for one in counted if k < len(one.plots)] for k in range(len(model.plots))]
    sides: tuple[Side, ...] = ("x", "y", "right")
    axes = [
        {side: _common(plot, found, side) for side in sides}
        for plot, found in zip(model.plots, plots, strict=True)
    ]
    return [
        replace(
            chart, plots=tuple(_with(plot, found) for plot, found in zip(chart.plots, axes, strict=False))
        )
        for chart in charts
    ]


def _common(model: Plot, plots: Sequence[Plot], side: Side) -> Axis:
    """Return one axis for all plots."""
    axis = axis_of(model, side)
    signed = [other for plot in plots if (other := axis_of(plot, side)).scale == "symlog"]
    if axis.scale == "log" and signed:
        axis = replace(axis, scale="symlog", linear=min(other.linear for other in signed))
    free = [_with(plot, {side: replace(axis, range=axis_of(plot, side).range)}) for plot in plots]
    found = [this for plot in free if (this := reach(plot, side)) is not None]
    if not found:
        return axis
    return replace(axis, range=(min(low for low, _ in found), max(high for _, high in found)))


def _with(plot: Plot, axes: Mapping[Side, Axis]) -> Plot:
    return replace(
        plot,
        x=axes.get("x", plot.x),
        y=axes.get("y", plot.y),
        right=axes.get("right", plot.right) if plot.right else None,
    )


def shades(charts: Sequence[Chart]) -> Reach | None:
    """Return the smallest and the largest number of all heat maps in the charts; of log ones, only positive ones."""
    low, high = np.inf, -np.inf
    for mark in (mark for chart in charts for plot in chart.plots for mark in plot.marks):
        if isinstance(mark, Heat):
            values = mark.values[np.isfinite(mark.values)]
            values = values[values > 0] if mark.scale == "log" else values
            if len(values):
                low, high = min(low, float(values.min())), max(high, float(values.max()))
    return (low, high) if low <= high else None


def _numbers(mark: Mark, side: Side) -> Iterator[Floats]:
    """Yield the numbers of a mark along one side."""
    match mark:
        case Line():
            if side == "x":
                yield mark.x
            elif mark.right == (side == "right"):
                yield mark.y
        case Band() if side != "right":
            yield from (mark.x,) if side == "x" else (mark.low, mark.high)
        case Bars():
            upward: Side = "x" if mark.flat else "right" if mark.right else "y"
            along: Side = "y" if mark.flat else "x"
            if side == along:
                yield mark.edges
            elif side == upward:
                yield np.append(mark.heights, 0.0)
        case Heat() if side != "right":
            yield mark.x if side == "x" else mark.y
        case Disc() if side != "right":
            yield np.array([-mark.radius, mark.radius])
        case Ticks() if side == "x":
            yield mark.at


def _fills(mark: Mark, side: Side) -> bool:
    """Whether a mark fills its plot along a side, so that no room is wanted beyond."""
    if isinstance(mark, Heat):
        return side != "right"
    return isinstance(mark, Bars) and side == ("y" if mark.flat else "x")


def _with_guides(plot: Plot, side: Side, low: float, high: float) -> Reach:
    """Take guides in, but not those for which the data would have to shrink to less than half."""
    log = axis_of(plot, side).scale == "log"
    span = high / low if log else high - low
    for mark in plot.marks:
        if isinstance(mark, Guide) and mark.axis == side and (mark.at > 0 or not log):
            wider = min(low, mark.at), max(high, mark.at)
            if wider[1] / wider[0] <= span**2 if log else wider[1] - wider[0] <= 2 * span:
                low, high = wider
    return low, high


def _wider(low: float, high: float, axis: Axis, margin: float) -> Reach:
    if axis.scale == "log":
        factor = (high / low) ** margin if high > low else 2.0
        return low / max(factor, 1.0 + margin), high * max(factor, 1.0 + margin)
    if low == high and axis.steps:
        return low, low + 1.0
    if low == high:
        return low - (abs(low) / 10 or 0.5), high + (abs(high) / 10 or 0.5)
    room = (high - low) * margin
    return low - room if low != 0 else low, high + room
