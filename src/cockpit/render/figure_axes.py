"""Axes of figures: scales, ticks and their labels, so short that they always fit the room reserved for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ruler
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import (
    FixedLocator,
    Formatter,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from cockpit.instruments.chart import Axis, Plot
from cockpit.render.extent import Reach, Side, axis_of, reach
from cockpit.render.palette import Palette

TEXT = 7.5
"""Size of labels, in points."""

NAME = 20
"""Letters of a layer's name that are shown."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def set_axis(
    axes: Axes,
    plot: Plot,
    side: Side,
    palette: Palette,
    inches: float,
    labelled: bool = True,
    colour: str | None = None,
) -> None:
    """Give one side of some axes its scale, reach, ticks and label.

    Args:
        axes: the axes.
        plot: whose side it is.
        side: which one.
        palette: colours.
        inches: how long the side is.
        labelled: whether its ticks and itself have labels.
        colour: of its label.
    """
    axis = axis_of(plot, side)
    found = reach(plot, side)
    if found is None:
        axis, found = replace(axis, scale="linear"), (0.0, 1.0)
    ruler = axes.xaxis if side == "x" else axes.yaxis
    _scale(axes, side, axis)
    if side == "x":
        axes.set_xlim(*found)
    else:
        axes.set_ylim(*found)
    _ticks(ruler, axis, found, max(1, int(inches / (0.75 if side == "x" else 0.33))))
    if reach(plot, side) is None:
        ruler.set_major_locator(NullLocator())
    ruler.set_minor_locator(NullLocator())
    ruler.set_tick_params(
        which="both",
        labelsize=TEXT,
        labelcolor=palette.text,
        color=palette.rule,
        length=2.5,
        width=0.7,
        pad=2,
        direction="out",
    )
    if labelled:
        room = inches + (0.35 if plot.place == "main" else 0.0)
        fits = side == "x" or text_width(axis.label, TEXT) < room
        ruler.set_label_text(axis.label if fits else "", fontsize=TEXT, color=colour or palette.text)
        ruler.labelpad = 2.5
    else:
        ruler.set_tick_params(which="both", labelbottom=False, labelleft=False, length=0)


def short(name: str) -> str:
    """Return a name of at most `NAME` letters: parts of a long one become initials, from the left.

    >>> short("encoder.layers.11.attention.out_proj.weight")
    'e.l.11.a.o.weight'
    """
    parts = name.split(".")
    for k, part in enumerate(parts[:-1]):
        if len(".".join(parts)) <= NAME:
            break
        parts[k] = part if part.isdigit() else part[:1]
    found = ".".join(parts)
    return found if len(found) <= NAME else f"{found[: NAME - 1]}…"


def plain(values: Sequence[float]) -> list[str]:
    """Return the labels of ticks at some numbers: short, all in one form, and no two alike.

    >>> plain([0.0, 0.25, 0.5]), plain([0.0, 20_000.0]), plain([1e-5, 1.5e-5])
    (['0.00', '0.25', '0.50'], ['0', '20k'], ['1.0e-5', '1.5e-5'])
    """
    if not len(values):
        return []
    largest = max(abs(value) for value in values)
    if largest == 0:
        return ["0"] * len(values)
    power = math.floor(math.log10(largest))
    if -3 <= power < 4:
        return [f"{value:.{_digits(values)}f}".replace("-", "−") for value in values]
    thousands, letter = (power // 3, "kMG"[power // 3 - 1]) if 4 <= power < 12 else (0, "")
    unit = 10.0 ** (3 * thousands if letter else power)
    scaled = [value / unit for value in values]
    ending = letter or f"e{power}"
    return [
        "0" if value == 0 else f"{value:.{_digits(scaled)}f}{ending}".replace("-", "−", value < 0)
        for value in scaled
    ]


def powers(value: float) -> str:
    """Return the label of a tick on a log axis.

    >>> powers(1e-3), powers(1.0), powers(-100.0), powers(20.0)
    ('10⁻³', '1', '−10²', '20')
    """
    if value == 0:
        return "0"
    power = math.log10(abs(value))
    if abs(power - round(power)) > 1e-9 or -2 < power < 2:
        return f"{value:.3g}".replace("-", "−")
    return f"{'−' if value < 0 else ''}10{str(round(power)).translate(_RAISED)}"


class Plain(Formatter):
    """`plain`, for matplotlib."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return one label."""
        return plain([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks."""
        return plain([float(value) for value in values])


class Powers(Formatter):
    """`powers`, for matplotlib."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return one label."""
        return powers(x)


def _digits(values: Sequence[float]) -> int:
    """Return how many digits after the point tell the numbers apart."""
    ordered = sorted(set(values))
    apart = min((after - before for before, after in pairwise(ordered)), default=abs(ordered[-1]) / 10)
    for digits in range(9):
        if all(abs(value - round(value, digits)) <= 0.01 * apart for value in values):
            return digits
    return 9


def _scale(axes: Axes, side: Side, axis: Axis) -> None:
    setter = axes.set_xscale if side == "x" else axes.set_yscale
    if axis.scale == "symlog":
        setter("symlog", linthresh=axis.linear)
    else:
        setter(axis.scale)


def _ticks(ruler: Ruler, axis: Axis, found: Reach, count: int) -> None:
    low, high = min(found), max(found)
    if axis.names:
        every = math.ceil(len(axis.names) / max(2, 2 * count))
        shown = range(0, len(axis.names), every)
        ruler.set_major_locator(FixedLocator([k + 0.5 for k in shown]))
        labels = {k + 0.5: short(axis.names[k]) for k in shown}
        ruler.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, "")))
        return
    narrow = 0 < low < high < 2 * low or (low < high < 0 and low > 2 * high)
    if axis.scale == "linear" or narrow:
        ruler.set_major_locator(MaxNLocator(count, integer=axis.steps, steps=[1, 2, 2.5, 5, 10]))
        ruler.set_major_formatter(Plain())
    else:
        signed = axis.scale == "symlog"
        ticks = _symlog_ticks(low, high, axis.linear, count) if signed else _log_ticks(low, high, count)
        ruler.set_major_locator(FixedLocator(ticks))
        ruler.set_major_formatter(Powers())
    ruler.set_minor_formatter(NullFormatter())


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return round numbers on a log axis, about ``count``: powers of ten, or more between them where few are shown."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
        ticks = [factor * 10.0**power for power in decades for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if found and len(ticks) > count:
            break
        found = ticks
    if len(found) < min(2, count):
        return [tick for tick in MaxNLocator(count).tick_values(low, high) if low <= tick <= high]
    return found[:: -math.ceil(len(found) / (count + 1 if count > 1 else 1))][::-1]


def _symlog_ticks(low: float, high: float, linear: float, count: int) -> list[float]:
    """Return 0 and powers of ten on both sides, at most about ``count``; other round numbers where these are few."""
    ends = [math.floor(math.log10(max(end, 1e-300)) + 1e-9) for end in (-low, high)]
    first = math.ceil(math.log10(linear) - 1e-9)
    powers = [list(range(last, first - 1, -1)) for last in ends]
    every = max(1, math.ceil(sum(map(len, powers)) / max(2, count - 1)))
    ticks = [-(10.0**power) for power in powers[0][::every]] + [10.0**power for power in powers[1][::every]]
    found = sorted(tick for tick in [0.0, *ticks] if low <= tick <= high)
    if len(found) > 2 or (len(found) == 2 and low < 0 < high):
        return found
    if low > 0:
        return _log_ticks(low, high, count)
    return [float(tick) for tick in MaxNLocator(count).tick_values(low, high) if low <= tick <= high]


@cache
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return how many inches a line of text takes."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72.0
