"""One plot in its spot of a panel, of one run or of several above each other: axes, marks, colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cockpit.instruments.chart import Bars, Heat, Line, Mark, Plot
from cockpit.render.extent import Reach
from cockpit.render.figure_axes import TEXT, Plain, Powers, set_axis
from cockpit.render.figure_layout import Box
from cockpit.render.figure_marks import Dashes, Entry, Pen, draw
from cockpit.render.figure_places import Spot
from cockpit.render.palette import Palette


@dataclass(frozen=True)
class Look:
    """What panels of one figure have in common.

    Attributes:
        palette: the colours.
        runs: colour and name of each run, where several are drawn above each other.
        named: whether a panel's legend names the runs.
        card: whether panels are cards on a coloured ground.
        moment: the step that was asked for, to be marked in series.
    """

    palette: Palette
    runs: tuple[tuple[str, str], ...] = ()
    named: bool = False
    card: bool = False
    moment: int | None = None


def draw_plot(
    axes: Axes, plots: Sequence[tuple[int, Plot]], spot: Spot, look: Look, shades: Reach | None
) -> list[Entry]:
    """Draw one plot, of one or of several runs, and return the entries of its legend."""
    palette, (_, plot) = look.palette, plots[0]
    axes.set_facecolor("none")
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set(color=palette.rule, linewidth=0.7)
    axes.set_axisbelow(True)
    if spot.captioned:
        axes.set_title(plot.y.label, loc="left", fontsize=TEXT, color=palette.text, pad=2.5)
        plot = replace(plot, x=replace(plot.x, label=""), y=replace(plot.y, label=""))
    set_axis(axes, plot, "x", palette, spot.box.width, spot.x_labels)
    two = plot.right is not None and not look.runs
    colour = _tone(plot, False, palette) if two else None
    set_axis(axes, plot, "y", palette, spot.box.height, spot.y_labels, colour)
    right = axes
    if plot.right is not None:
        right = axes.twinx()
        for spine in right.spines.values():
            spine.set_visible(False)
        colour = _tone(plot, True, palette) if two else None
        set_axis(right, plot, "right", palette, spot.box.height, colour=colour)
    if not any(isinstance(mark, Heat) for mark in plot.marks):
        axes.grid(True, color=palette.grid, linewidth=0.7)
    common = _common([own for _, own in plots]) if look.runs else []
    quiet = Pen(axes, right, palette, palette.tones["faint"])
    for line in common:
        draw(line, quiet)
    entries: list[Entry] = []
    for k, own in plots:
        pen = Pen(axes, right, palette, look.runs[k][0] if look.runs else None, k == plots[0][0], shades)
        marks = [mark for mark in own.marks if not any(_equal(mark, line) for line in common)]
        drawn = [entry for mark in marks for entry in draw(mark, pen) if entry[1]]
        if look.runs:  # colours are runs; what remains to be told is which dashes are what
            series = [*quiet.series, *pen.series]
            drawn = [(legend_key(palette.text, dashes), label) for dashes, label in series if label]
        entries = entries or drawn
        if pen.mesh is not None and spot.bar is not None:
            _bar(axes, pen, spot.bar, palette)
    if look.moment is not None and plot.x.steps:
        axes.axvline(look.moment, color=palette.ink, linewidth=0.7, alpha=0.6, zorder=2.5)
    if plot.upright:
        axes.set_aspect("equal", adjustable="box")
    return entries


def legend_key(colour: str, dashes: Dashes = "solid") -> Artist:
    """Return the line that stands for a colour or for dashes in a legend."""
    return Line2D([], [], color=colour, linewidth=1.5, linestyle=dashes)


def _common(plots: Sequence[Plot]) -> list[Line]:
    """Return the lines that are the same in all plots: of several runs they are drawn once, and belong to none."""
    lines = [mark for mark in plots[0].marks if isinstance(mark, Line)] if len(plots) > 1 else []
    return [line for line in lines if all(any(_equal(mark, line) for mark in plot.marks) for plot in plots)]


def _equal(mark: Mark, line: Line) -> bool:
    return (
        isinstance(mark, Line)
        and mark.label == line.label
        and np.array_equal(mark.x, line.x, equal_nan=True)
        and np.array_equal(mark.y, line.y, equal_nan=True)
    )


def _tone(plot: Plot, right: bool, palette: Palette) -> str | None:
    """Return the colour that all lines and bars on one of two axes have."""
    tones = {mark.tone for mark in plot.marks if isinstance(mark, Line | Bars) and mark.right == right}
    return palette.tones[tones.pop()] if len(tones) == 1 else None


def _bar(axes: Axes, pen: Pen, box: Box, palette: Palette) -> None:
    figure = axes.figure
    assert isinstance(figure, Figure)
    assert pen.mesh is not None
    bar = figure.colorbar(pen.mesh, cax=figure.add_axes(box.on(*figure.get_size_inches())))
    bar.ax.yaxis.set_major_formatter(Powers() if isinstance(pen.mesh.norm, LogNorm) else Plain())
    bar.outline.set_visible(False)
    bar.ax.tick_params(
        labelsize=TEXT - 0.5, labelcolor=palette.text, color=palette.rule, length=2, width=0.7, pad=1.5
    )
    bar.ax.minorticks_off()
