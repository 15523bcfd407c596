"""Figures: a screen of instruments, or some of them, as a matplotlib figure to look at, to save, to print.

Only the object-oriented interface of matplotlib is used: no window, no global figure, no setting that outlives a call.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Chart, View
from cockpit.instruments.instrument import Source
from cockpit.instruments.screens import Screen
from cockpit.instruments.shelf import all_instruments
from cockpit.render.extent import Reach, pinned
from cockpit.render.figure_axes import text_width
from cockpit.render.figure_contents import (
    chosen,
    drawn_chart,
    facts,
    instruments_of,
    run_labels,
    run_name,
    screen_named,
)
from cockpit.render.figure_layout import (
    COLUMN_HEAD,
    EDGE,
    HEAD,
    Box,
    grid_layout,
    grid_size,
    screen_layout,
    screen_size,
)
from cockpit.render.figure_panel import draw_panel
from cockpit.render.figure_plot import Look
from cockpit.render.palette import DARK, LIGHT, Palette

DPI = 120
"""Dots per inch of pictures, if nothing else is asked for."""

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "text.parse_math": False,  # a $ in a name is a $
    "pdf.fonttype": 42,  # publishers refuse type 3
    "svg.hashsalt": "cockpit",
    "savefig.bbox": None,
    "path.simplify": True,
}


class Picture(Figure):
    """A figure that notebooks show as a picture, whether pyplot is set up there or not."""

    def _repr_png_(self) -> bytes:
        return picture(self)


def figure(
    run: Source,
    instruments: str | Iterable[str] | None = None,
    screen: str = "primary",
    view: View = View(),  # noqa: B008 - a frozen value
    size: tuple[float, float] | None = None,
    dark: bool = False,
    runs: Sequence[Source] = (),
    title: str | None = None,
    log_steps: bool = False,
    into: Figure | None = None,
) -> Figure:
    """Draw a whole screen, or single instruments.

    Args:
        run: the run.
        instruments: name or names; without, the whole screen is drawn.
        screen: one of "primary", "secondary", "layers".
        view: the moment, the stretch of steps, the layer.
        size: width and height in inches.
        dark: light colours on a dark ground.
        runs: more runs, drawn above the first one: runs differ in colour, lines of a run in dashes.
        title: stands above a screen; default: the run's name.
        log_steps: steps on a logarithmic axis.
        into: a figure to draw into, of which only the window stays.
    """
    names = chosen(instruments)
    shown = None if names else screen_named(screen)
    everyone = [run, *runs]
    charts = {
        name: pinned([drawn_chart(name, one, view, log_steps) for one in everyone])
        for name in names or instruments_of(shown)
    }
    name = f"{len(everyone)} runs" if runs else run_name(run)
    heading = Heading(name if title is None else title, "" if runs else facts(run, view))
    drawn = into or Picture(dpi=DPI)
    drawn.set_size_inches(size or figure_size(charts, shown))
    compose(drawn, charts, shown, DARK if dark else LIGHT, heading, run_labels(everyone), view.step)
    return drawn


def save(figure: Figure, path: str | os.PathLike[str], dpi: float | None = None, **more: Any) -> None:
    """Write a figure to a file whose ending (png, svg, pdf) says how."""
    file = Path(path)
    part = file.with_name(file.name + ".part")  # a half written file is never left under the name asked for
    more = {"format": file.suffix[1:].lower() or "png", "dpi": dpi or "figure", **more}
    try:
        with settings():
            figure.savefig(part, **more)
        part.replace(file)
    except ValueError as error:  # matplotlib lists the endings it knows
        raise CockpitError(f"{file} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def picture(figure: Figure, dpi: float | None = None) -> bytes:
    """Return a figure as PNG."""
    file = io.BytesIO()
    with settings():
        figure.savefig(file, format="png", dpi=dpi or "figure")
    return file.getvalue()


@contextmanager
def settings() -> Iterator[None]:
    """Draw with our settings, whatever the user's are, and leave theirs as they were."""
    with style.context(["default", _SETTINGS]):
        yield


@dataclass(frozen=True)
class Heading:
    """What stands above a screen: a title, and facts in small letters."""

    title: str = ""
    facts: str = ""


def compose(
    into: Figure,
    charts: Mapping[str, Sequence[Chart]],
    screen: Screen | None,
    palette: Palette,
    heading: Heading,
    labels: Sequence[str] = (),
    moment: int | None = None,
    shades: Mapping[str, Reach | None] | None = None,
) -> None:
    """Draw charts into a figure that has its size; what was in it goes.

    Args:
        into: the figure.
        charts: of each instrument one, or one for each run.
        screen: in whose columns they stand; None: in a grid.
        palette: the colours.
        heading: above a screen.
        labels: the runs' names, where there are several.
        moment: a step to be marked in series.
        shades: where the colours of an instrument's heat map end, if not at its own numbers.
    """
    with settings():
        if into.axes:
            into.clear()
        into.set_facecolor(palette.paper)
        width, height = into.get_size_inches()
        layout = screen_layout(screen, width, height) if screen else grid_layout(list(charts), width, height)
        runs = tuple((palette.run(k), label) for k, label in enumerate(labels)) if len(labels) > 1 else ()
        if screen is not None:
            _head(into, heading, runs, palette)
        for column, box in layout.columns:
            _ground(
                into,
                box,
                column.title,
                palette.columns[all_instruments()[column.instruments[0]].group],
                palette,
            )
        look = Look(palette, runs, named=screen is None, card=screen is not None, moment=moment)
        for name, box in layout.panels:
            draw_panel(into, box, charts[name], look, (shades or {}).get(name))


def draw_into(
    into: Figure,
    share: tuple[float, float, float, float],
    name: str,
    run: Source,
    view: View = View(),  # noqa: B008 - a frozen value
    log_steps: bool = False,
) -> None:
    """Draw an instrument into a part of a figure: left, bottom, width and height as shares of it."""
    width, height = into.get_size_inches()
    left, bottom, wide, high = share
    box = Box(left * width, bottom * height, wide * width, high * height)
    with settings():
        draw_panel(
            into, box, [drawn_chart(name, run, view, log_steps)], Look(LIGHT, card=True, moment=view.step)
        )


def figure_size(charts: Mapping[str, Sequence[Chart]], screen: Screen | None) -> tuple[float, float]:
    """Return width and height in inches of a figure of a screen, or of some charts."""
    plots = [plot for found in charts.values() for chart in found for plot in chart.plots]
    if screen is not None:
        return screen_size(screen, max((len(plot.y.names) for plot in plots), default=0))
    return grid_size(
        len(charts), tall=any(len(chart.plots) > 1 for found in charts.values() for chart in found)
    )


def _head(into: Figure, heading: Heading, runs: Sequence[tuple[str, str]], palette: Palette) -> None:
    """Write the title of a screen; on the right the facts, or which colour is which run."""
    width, height = into.get_size_inches()
    room = width - 2 * EDGE
    x, y, wide, _ = Box(EDGE, height - HEAD / 2 - 0.02, room, 0).on(width, height)
    if runs:
        longest = max(text_width(label, 8) for _, label in runs) + 0.6
        columns = max(1, min(len(runs), int(0.7 * room / longest)))
        into.legend(
            [Line2D([], [], color=colour, linewidth=2.5) for colour, _ in runs],
            [label for _, label in runs],
            loc="center right",
            bbox_to_anchor=(x + wide, y),
            ncols=columns,
            frameon=False,
            fontsize=9 if len(runs) <= columns else 8 if len(runs) <= 2 * columns else 6.5,
            labelcolor=palette.text,
            labelspacing=0.3,
            borderaxespad=0.0,
        )
        room -= columns * longest
    else:
        into.text(x + wide, y, heading.facts, fontsize=9, color=palette.text, ha="right", va="center")
        room -= text_width(heading.facts, 9) + 0.3
    size = max(6.0, 15 * min(1.0, room / max(0.01, text_width(heading.title, 15, "bold"))))
    into.text(x, y, heading.title, fontsize=size, weight="bold", color=palette.ink, va="center")


def _ground(into: Figure, box: Box, title: str, colour: str, palette: Palette) -> None:
    """Draw a column's coloured ground and its title."""
    size = into.get_size_inches()
    x, y, wide, high = box.on(*size)
    ground = Rectangle(
        (x, y), wide, high, facecolor=colour, linewidth=0, zorder=-2, transform=into.transFigure
    )
    into.add_artist(ground)
    x, y, _, _ = Box(box.x + box.width / 2, box.y + box.height - COLUMN_HEAD / 2, 0, 0).on(*size)
    into.text(
        x, y - 0.001, title.upper(), fontsize=11, weight="bold", color=palette.ink, ha="center", va="center"
    )
