"""Marks of a chart on matplotlib's axes: one drawer each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from cockpit.instruments.chart import (
    Band,
    Bars,
    Disc,
    Floats,
    Guide,
    Heat,
    Line,
    Mark,
    Ticks,
    Tone,
    Zone,
)
from cockpit.render.extent import Reach
from cockpit.render.figure_axes import TEXT, text_width
from cockpit.render.palette import Palette

Dashes = Literal["solid"] | tuple[int, tuple[float, ...]]

DASHES: tuple[Dashes, ...] = ("solid", (0, (4, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
"""How the lines of one run differ, where several runs are told apart by their colours."""

FEW = 400
"""Up to so many points, noisy series are dots; beyond, a thin line."""

Entry = tuple[Artist, str]
"""One entry of a legend."""


@dataclass
class Pen:
    """How the marks of a run are drawn in one plot.

    Attributes:
        axes: where.
        right: the same with the right axis, where there is one.
        palette: colours.
        run: the run's colour, where there are several; marks that only stand in the way there are left out.
        first: whether the run is the first one.
        shades: from where to where the colours of heat maps go, if not from the mark's own numbers.
        series: dashes and label of each line and of all bars that were drawn.
        mesh: the heat map that was drawn, for a colour bar.
    """

    axes: Axes
    right: Axes
    palette: Palette
    run: str | None = None
    first: bool = True
    shades: Reach | None = None
    series: list[tuple[Dashes, str]] = field(default_factory=list)
    mesh: QuadMesh | None = None

    def dashes(self, label: str, dashed: bool = False) -> Dashes:
        """Return how the next series is drawn: dashes tell series apart where colours tell runs apart."""
        found = DASHES[len(self.series) % len(DASHES) if self.run else dashed]
        self.series.append((found, label))
        return found

    def colour(self, tone: Tone) -> str:
        """Return the colour of a mark."""
        return self.run or self.palette.tones[tone]


@singledispatch
def draw(mark: Mark, pen: Pen) -> list[Entry]:
    """Draw one mark and return its entries in the legend."""
    raise TypeError(f"{mark!r} is not a mark")


@draw.register
def _line(mark: Line, pen: Pen) -> list[Entry]:
    axes, colour = pen.right if mark.right else pen.axes, pen.colour(mark.tone)
    style = pen.dashes(mark.label, mark.dashed)
    x, y = mark.x, mark.y
    if mark.smooth and np.isfinite(y).sum() > 4:
        if len(x) <= FEW:
            axes.plot(x, y, "o", color=colour, markersize=2.2, alpha=0.3, markeredgewidth=0, zorder=2)
        else:
            axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.3, zorder=2)
        y = averaged(y)
    dots = {"marker": "o", "markersize": 3.0, "markeredgewidth": 0} if mark.dots else {}
    (line,) = axes.plot(x, y, color=colour, linewidth=1.5, linestyle=style, zorder=3, **dots)  # type: ignore[arg-type]
    line.set_solid_capstyle("round")
    alone = _alone(y)
    if alone.any() and not mark.dots:  # a line cannot show a point between two gaps
        axes.plot(x[alone], y[alone], "o", color=colour, markersize=2.5, markeredgewidth=0, zorder=3)
    return [(line, mark.label)]


@draw.register
def _band(mark: Band, pen: Pen) -> list[Entry]:
    area = pen.axes.fill_between(
        mark.x, mark.low, mark.high, color=pen.colour(mark.tone), alpha=0.18, linewidth=0, zorder=1.5
    )
    return [(area, mark.label)]


@draw.register
def _bars(mark: Bars, pen: Pen) -> list[Entry]:
    axes, colour = pen.right if mark.right else pen.axes, pen.colour(mark.tone)
    heights = np.where(np.isfinite(mark.heights), mark.heights, 0.0)
    side: Literal["horizontal", "vertical"] = "horizontal" if mark.flat else "vertical"
    shape = axes.stairs(
        heights,
        mark.edges,
        orientation=side,
        color=colour,
        linewidth=0.9,
        linestyle=pen.dashes(mark.label),
        zorder=2.2,
    )
    if pen.run is None:
        shape = axes.stairs(
            heights,
            mark.edges,
            orientation=side,
            fill=True,
            color=colour,
            alpha=0.35,
            linewidth=0,
            zorder=1.8,
        )
    return [(shape, mark.label)]


@draw.register
def _heat(mark: Heat, pen: Pen) -> list[Entry]:
    if not pen.first:
        return []
    values = np.ma.masked_invalid(mark.values)
    if mark.scale == "log":
        values = np.ma.masked_less_equal(values, 0.0)
    low, high = pen.shades or _ends(values)
    norm: Normalize
    if mark.scale == "log":
        norm = LogNorm(low, max(high, 1.01 * low))
    else:
        norm = Normalize(low, high if high > low else low + 1.0)
    colours = LinearSegmentedColormap.from_list("heat", pen.palette.heat)
    pen.mesh = pen.axes.pcolormesh(mark.x, mark.y, values, norm=norm, cmap=colours, rasterized=True, zorder=1)
    return []


@draw.register
def _guide(mark: Guide, pen: Pen) -> list[Entry]:
    if not pen.first or not np.isfinite(mark.at):
        return []
    axes, colour = pen.axes, pen.palette.tones[mark.tone]
    line = axes.axvline if mark.axis == "x" else axes.axhline
    line(mark.at, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.8, zorder=1.6)
    low, high = sorted(axes.get_xlim() if mark.axis == "x" else axes.get_ylim())
    if mark.label and low <= mark.at <= high:
        _word(pen, mark.axis, mark.at, mark.label, colour)
    return []


@draw.register
def _zone(mark: Zone, pen: Pen) -> list[Entry]:
    if not pen.first:
        return []
    axes, colour = pen.axes, pen.palette.tones[mark.tone]
    first, last = sorted(axes.get_xlim() if mark.axis == "x" else axes.get_ylim())
    low, high = max(mark.low, first), min(mark.high, last)
    if not low < high:
        return []
    span = axes.axvspan if mark.axis == "x" else axes.axhspan
    span(low, high, color=colour, alpha=0.13, linewidth=0, zorder=0.5)
    if mark.label:
        _word(pen, mark.axis, low, mark.label, colour)
    return []


@draw.register
def _disc(mark: Disc, pen: Pen) -> list[Entry]:
    if not np.isfinite(mark.radius):
        return []
    turn = np.linspace(0.0, 2.0 * np.pi, 721)
    x, y = mark.radius * np.cos(turn), mark.radius * np.sin(turn)
    colour = pen.colour(mark.tone)
    if pen.run is None:
        pen.axes.fill(x, y, color=colour, alpha=0.15, linewidth=0, zorder=1.2)
    (rim,) = pen.axes.plot(x, y, color=colour, linewidth=1.3, zorder=2)
    return [(rim, mark.label)]


@draw.register
def _ticks(mark: Ticks, pen: Pen) -> list[Entry]:
    at = mark.at[np.isfinite(mark.at)]
    if not len(at):
        return []
    foot = Line2D(
        at,
        np.zeros(len(at)),
        color=pen.colour(mark.tone),
        linestyle="none",
        marker="^",
        markersize=4.5,
        markeredgewidth=0,
        transform=pen.axes.get_xaxis_transform(),
        clip_on=False,
        zorder=4,
    )
    pen.axes.add_artist(foot)
    return [(foot, mark.label)]


def legend_labels(marks: Sequence[Mark]) -> list[str]:
    """Return the labels of marks that stand in a legend."""
    told = (mark for mark in marks if isinstance(mark, Line | Band | Bars | Disc | Ticks))
    return [mark.label for mark in told if mark.label]


def averaged(values: Floats) -> Floats:
    """Return the moving average that is drawn above noisy values; it does not start too low, and skips gaps.

    Weights fall off exponentially, over about a fortieth of the points, at least five.
    """
    keep = 1.0 - 2.0 / (max(5.0, len(values) / 40.0) + 1.0)
    found, total, weight = np.full(len(values), np.nan), 0.0, 0.0
    for k, value in enumerate(values.tolist()):
        if np.isfinite(value):
            total = keep * total + (1.0 - keep) * value
            weight = keep * weight + (1.0 - keep)
            found[k] = total / weight
    return found


def _alone(values: Floats) -> Any:
    """Say which values are numbers between two that are not."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _ends(values: np.ma.MaskedArray[tuple[int, int], np.dtype[np.float64]]) -> Reach:
    shown = values.compressed()
    return (float(shown.min()), float(shown.max())) if len(shown) else (1.0, 10.0)


def _word(pen: Pen, along: str, at: float, text: str, colour: str) -> None:
    """Write beside a line across the plot, at its upper or right end, on the side where there is room."""
    axes, size, figure = pen.axes, TEXT - 0.5, pen.axes.figure
    assert isinstance(figure, Figure)
    style: dict[str, Any]
    if along == "x":
        end = axes.get_position().x1 * figure.get_size_inches()[0]
        room = end - axes.transData.transform((at, axes.get_ylim()[0]))[0] / figure.dpi - 0.04
        if text_width(text, size) > room:
            text = "\n".join(textwrap.wrap(text, max(1, len(text) // 2 + 1), break_long_words=False))
        fits = max(text_width(line, size) for line in text.split("\n")) <= room
        style = {"xy": (at, 1.0), "xycoords": axes.get_xaxis_transform(), "xytext": (2 if fits else -2, -2)}
        style |= {"ha": "left" if fits else "right", "va": "top"}
    else:
        low, high = axes.get_position().intervaly * figure.get_size_inches()[1] * figure.dpi
        above = axes.transData.transform((axes.get_xlim()[0], at))[1] < low + 0.85 * (high - low)
        style = {
            "xy": (1.0, at),
            "xycoords": axes.get_yaxis_transform(),
            "xytext": (-2, 1.5 if above else -1.5),
        }
        style |= {"ha": "right", "va": "bottom" if above else "top"}
    halo = withStroke(linewidth=2, foreground=pen.palette.card)
    # on the upper ones of the two axes: bars on the right axis would hide it
    pen.right.annotate(
        text, textcoords="offset points", color=colour, fontsize=size, path_effects=[halo], zorder=5, **style
    )
