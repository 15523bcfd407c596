"""Where the plots of one chart stand in its panel: the main one in the middle, the others around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cockpit.instruments.chart import Axis, Heat, Place, Plot
from cockpit.render.figure_axes import TEXT, short, text_width
from cockpit.render.figure_layout import Box

FLAT = 1.2
"""In areas so many times as wide as high, plots above and below the main one would leave it too little room."""

TOP = 0.06
"""Room above axes, for half a label of a tick."""

BAR = 0.47
"""Room for a colour bar."""


@dataclass(frozen=True)
class Spot:
    """Where a plot goes.

    Attributes:
        box: its axes.
        bar: its colour bar.
        x_labels: whether its ticks along x have labels; a plot in line with it may have them.
        y_labels: the same along y.
        captioned: what its y axis measures stands above it, not beside it.
    """

    box: Box
    bar: Box | None = None
    x_labels: bool = True
    y_labels: bool = True
    captioned: bool = False


def placed(area: Box, plots: Sequence[Plot]) -> list[tuple[Plot, Spot]]:
    """Share an area among plots."""
    by_place: dict[Place, Plot] = {plot.place: plot for plot in plots}
    main = by_place.get("main", plots[0])
    if any(isinstance(mark, Heat) for mark in main.marks):
        bar = Box(area.x + area.width - BAR + 0.06, area.y, 0.08, area.height)
        found = placed_around(area.inside(0, 0, BAR, 0), main, by_place)
        spot = found["main"]
        found["main"] = replace(spot, bar=replace(bar, y=spot.box.y, height=spot.box.height))
    elif area.width > FLAT * area.height and {"top", "below"} & set(_unlike(main, by_place)):
        found = _in_a_row(area, main, by_place)
    else:
        found = placed_around(area, main, by_place)
    return [(plot, found[plot.place]) for plot in plots]


def placed_around(area: Box, main: Plot, by_place: dict[Place, Plot]) -> dict[Place, Spot]:
    """Put plots where they want to be."""
    unlike = _unlike(main, by_place)

    def part(place: Place, whole: float) -> float:
        return 0.0 if place not in by_place else whole * (0.27 if place in unlike else 0.18)

    left, right = part("left", area.width), part("right", area.width)
    top, below = part("top", area.height), part("below", area.height)
    row = [by_place[place] for place in ("left", "main", "right") if place in by_place]
    column = [by_place[place] for place in ("top", "main", "below") if place in by_place]
    foot, before, after = max(map(_foot, row)), max(map(_before, column)), max(map(_after, column))
    if main.upright:  # a square; what remains of the width goes to the sides
        side = area.height - top - below - foot - TOP
        spare = max(0.0, area.width - left - right - before - after - side)
        sides = ("left" in by_place) + ("right" in by_place)
        left += spare / (sides or 2) if "left" in by_place or not sides else 0.0
        right += spare / (sides or 2) if "right" in by_place or not sides else 0.0
    middle = Box(area.x + left, area.y + below, area.width - left - right, area.height - top - below)
    outer: dict[Place, Box] = {
        "main": middle,
        "left": replace(middle, x=area.x, width=left),
        "right": replace(middle, x=middle.x + middle.width, width=right),
        "top": replace(middle, y=middle.y + middle.height, height=top),
        "below": replace(middle, y=area.y, height=below),
    }
    found: dict[Place, Spot] = {}
    for place, plot in by_place.items():
        beside, along, close = place in ("left", "right"), place in ("top", "below"), place not in unlike
        box = outer[place].inside(
            (TOP if close else _before(plot)) if beside else before,
            (TOP if close else _foot(plot)) if along else foot,
            _after(plot) if beside else after,
            TOP,
        )
        found[place] = Spot(box, None, not (along and close), not (beside and close))
    return found


def _in_a_row(area: Box, main: Plot, by_place: dict[Place, Plot]) -> dict[Place, Spot]:
    """Put the plots above and below on top of each other at the right instead, and the main one beside the left one."""
    others: list[Place] = [place for place in ("left", "top", "below", "right") if place in by_place]
    columns = [others[:1], others[1:]] if len(others) > 2 else [[place] for place in others]
    tall = area.height - _foot(main) - TOP
    square = tall + _before(main) + _after(main) if main.upright else area.width / (len(columns) + 1)
    wide = (area.width - min(square, area.width / 2)) / len(columns)
    found: dict[Place, Spot] = {"main": Spot(area.inside(_before(main), _foot(main), _after(main), TOP))}
    for number, places in enumerate(columns):
        high = area.height / len(places)
        for k, place in enumerate(places):
            left = area.x + (number * wide if number == 0 else area.width - (len(columns) - number) * wide)
            outer = Box(left, area.y + (len(places) - 1 - k) * high, wide, high)
            foot = _foot(replace(by_place[place], x=Axis()))
            found[place] = Spot(outer.inside(0.42, foot, 0.1, 0.17), captioned=True)
    middle = Box(area.x + wide, area.y, area.width - len(columns) * wide, area.height)
    found["main"] = Spot(middle.inside(_before(main), _foot(main), _after(main), TOP))
    return found


def _unlike(main: Plot, by_place: dict[Place, Plot]) -> list[Place]:
    """Return the places whose plots measure something else than the main one along the side where they meet."""
    found: list[Place] = []
    for place, plot in by_place.items():
        one, other = (plot.x, main.x) if place in ("top", "below") else (plot.y, main.y)
        same = (one.range, one.scale, one.steps) == (other.range, other.scale, other.steps)
        if plot is not main and not (same and one.label in ("", other.label)):
            found.append(place)
    return found


def _before(plot: Plot) -> float:
    """Return the room left of the axes: labels of ticks, and of the axis."""
    names = [text_width(short(name), TEXT) for name in plot.y.names]
    return (max(names) + 0.06 if names else 0.4) + (0.16 if plot.y.label else 0.02)


def _after(plot: Plot) -> float:
    """Return the room right of the axes."""
    return 0.1 if plot.right is None else 0.42 + (0.16 if plot.right.label else 0.02)


def _foot(plot: Plot) -> float:
    """Return the room below the axes."""
    return 0.2 + (0.15 if plot.x.label else 0.0)
