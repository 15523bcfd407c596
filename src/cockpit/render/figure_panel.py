"""One chart in a box of a figure: its heading, its plots side by side, its legend.

All room is reserved beforehand, in inches, so nothing overlaps, panels of a screen are aligned, and nothing jumps
from one frame of an animation to the next.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from cockpit.instruments.chart import Bars, Chart, Heat, Line, Plot
from cockpit.render.extent import Reach
from cockpit.render.figure_axes import TEXT, text_width
from cockpit.render.figure_layout import Box
from cockpit.render.figure_marks import Entry, legend_labels
from cockpit.render.figure_places import placed
from cockpit.render.figure_plot import Look, draw_plot, legend_key
from cockpit.render.palette import Palette

TITLE = 10.0
"""Size of a panel's title, in points."""

HEADING, LINE, KEY = 0.36, 0.16, 0.36
"""Inches: the height of a panel's heading, of a line of its legend, the width of an entry in it without its text."""


def draw_panel(
    figure: Figure, box: Box, charts: Sequence[Chart], look: Look, shades: Reach | None = None
) -> None:
    """Draw an instrument's chart, or its charts of several runs, into a box."""
    palette, chart = look.palette, charts[0]
    if look.card:
        x, y, width, height = box.on(*figure.get_size_inches())
        card = Rectangle((x, y), width, height, facecolor=palette.card, linewidth=0, zorder=-1)
        card.set_transform(figure.transFigure)
        figure.add_artist(card)
    drawn = [k for k, other in enumerate(charts) if other.plots]
    inner = box.inside(0.1, 0.06, 0.1, 0.08)
    _heading(figure, inner, chart, look)
    if not drawn:
        _absent(figure, inner, chart, palette)
        return
    notes = _lines(" · ".join(_notes(charts, look)), inner.width, 1 if look.card else 3)
    for k, line in enumerate(notes):
        _write(figure, inner.x, inner.y + 0.11 + 0.125 * (len(notes) - 1 - k), line, TEXT - 0.5, palette.text)
    plots = charts[drawn[0]].plots
    legend = _room(inner, chart, _labels(plots, look))
    area = inner.inside(0, 0.03 + 0.125 * len(notes) if notes else 0, 0, HEADING + legend.rows * LINE)
    for number, (plot, spot) in enumerate(placed(area, plots)):
        axes = figure.add_axes(
            spot.box.on(*figure.get_size_inches()), label=f"{chart.name} {plot.place}", zorder=1
        )
        same = [(k, charts[k].plots[number]) for k in drawn if number < len(charts[k].plots)]
        entries = draw_plot(axes, same, spot, look, shades)
        if number == 0:
            _legend(figure, inner, entries, legend, look)


@dataclass(frozen=True)
class _Legend:
    """Where the legend goes: beside the question (no rows), or below it in some rows of some columns."""

    rows: int
    columns: int


def _labels(plots: Sequence[Plot], look: Look) -> list[str]:
    """Return the labels of the legend: of marks, and of runs where their names stand nowhere else."""
    if not look.runs:
        return legend_labels(plots[0].marks)
    series = [mark for mark in plots[0].marks if isinstance(mark, Line | Bars)]
    return [name for _, name in look.runs if look.named] + [
        mark.label for mark in series if len(series) > 1 and mark.label
    ]


def _room(inner: Box, chart: Chart, labels: Sequence[str]) -> _Legend:
    """Find room for a legend. Nothing may be left out."""
    widths = [text_width(label, TEXT) + KEY for label in labels]
    if sum(widths) <= inner.width - text_width(chart.question, TEXT) - 0.15 or len(labels) < 2:
        return _Legend(0, max(1, len(labels)))
    columns = max(1, min(len(labels), int(inner.width / max(widths))))
    if sum(widths) <= inner.width:
        columns = len(labels)
    return _Legend(math.ceil(len(labels) / columns), columns)


def _notes(charts: Sequence[Chart], look: Look) -> Sequence[str]:
    """Return the chart's notes; of several runs, only that maps cannot lie above each other."""
    if not look.runs:
        return charts[0].notes
    first = next(k for k, chart in enumerate(charts) if chart.plots)
    heat = any(isinstance(mark, Heat) for plot in charts[first].plots for mark in plot.marks)
    return [f"the map is that of {look.runs[first][1]}"] if heat else []


def _heading(figure: Figure, inner: Box, chart: Chart, look: Look) -> None:
    """Write title, moment, readings and question."""
    palette, head = look.palette, inner.y + inner.height
    _write(figure, inner.x, head, chart.title, TITLE, palette.ink, weight="bold")
    used = text_width(chart.title, TITLE, "bold")
    tail = [chart.scope] if chart.scope else []
    tail += [f"step {chart.step:,}".replace(",", " ")] if chart.step is not None else []
    if tail:
        _write(figure, inner.x + used + 0.13, head - 0.028, " · ".join(tail), TEXT, palette.text)
        used += 0.13 + text_width(" · ".join(tail), TEXT)
    shown: list[str] = []
    for reading in () if look.runs else chart.readings:
        words = f"{reading.label} {reading.text}"
        if used + text_width("  ·  ".join([*shown, words]), TEXT + 0.5) + 0.2 < inner.width:
            shown.append(words)
    if shown:
        words = "  ·  ".join(shown)
        _write(figure, inner.x + inner.width, head - 0.02, words, TEXT + 0.5, palette.ink, align="right")
    question = _write(figure, inner.x, head - 0.185, chart.question, TEXT, palette.text)
    question.set_fontstyle("italic")


def _legend(figure: Figure, inner: Box, entries: list[Entry], room: _Legend, look: Look) -> None:
    if look.runs:
        runs = [(legend_key(colour), name) for colour, name in look.runs if look.named]
        entries = [*runs, *(entries if len(entries) > 1 else [])]
    if len(entries) < 2:
        return
    top = inner.y + inner.height - (HEADING if room.rows else HEADING - LINE - 0.03)
    x, y, width, _ = replace(inner, y=top, height=0.0).on(*figure.get_size_inches())
    legend = figure.legend(
        [artist for artist, _ in entries],
        [label for _, label in entries],
        loc="upper left" if room.rows else "upper right",
        bbox_to_anchor=(x if room.rows else x + width, y),
        ncols=room.columns,
        frameon=False,
        fontsize=TEXT,
        labelcolor=look.palette.text,
        handlelength=1.6,
        handletextpad=0.4,
        columnspacing=1.1,
        labelspacing=0.35,
        borderaxespad=0.0,
        borderpad=0.0,
    )
    legend.set_zorder(3)


def _absent(figure: Figure, inner: Box, chart: Chart, palette: Palette) -> None:
    """Say in the middle of the panel what is missing."""
    text = chart.missing or "There is nothing to show yet."
    letters = max(20, int(inner.width / text_width("n", TEXT + 0.5)))
    sentences = text.replace(". ", ".\n").split("\n")
    words = "\n".join(line for sentence in sentences for line in textwrap.wrap(sentence, letters))
    middle = inner.y + (inner.height - HEADING) / 2
    box = replace(inner, x=inner.x + inner.width / 2, y=middle).on(*figure.get_size_inches())
    figure.text(
        box[0],
        box[1],
        words,
        fontsize=TEXT + 0.5,
        color=palette.text,
        ha="center",
        va="center",
        linespacing=1.5,
    )


def _write(
    figure: Figure,
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str,
    weight: str = "normal",
    align: str = "left",
) -> Text:
    """Write a line whose upper end is at y."""
    at = Box(x, y, 0, 0).on(*figure.get_size_inches())
    return figure.text(at[0], at[1], text, fontsize=size, color=colour, weight=weight, ha=align, va="top")


def _lines(text: str, inches: float, most: int) -> list[str]:
    """Break a text into lines that fit, at most so many; what is cut off becomes dots."""
    lines, size = [""], TEXT - 0.5
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= inches:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            while lines[-1] and text_width(lines[-1] + " …", size) > inches:
                lines[-1] = lines[-1].rpartition(" ")[0]
            lines[-1] += " …"
            break
    return [line for line in lines if line]
