"""Chart: what an instrument shows, as plain data. A renderer knows marks, never instruments.

A chart is made of plots: most have one, the gradient tests have four. A plot has axes and marks. Numbers are
arrays of float64; a NaN in a line is a gap. Colours are words (`Tone`), so that each renderer can use its own palette.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Scale = Literal["linear", "log", "symlog"]
Tone = Literal["first", "second", "third", "fourth", "neutral", "faint", "good", "bad"]
"""Which colour: of the first, second, … series; quiet ones; what is as it should be, and what is not."""

Place = Literal["main", "top", "right", "left", "below"]
"""Where a plot stands in its chart; the main one is the largest."""


@dataclass(frozen=True)
class View:
    """What of a run is to be shown.

    ``step`` is the moment for instruments that show one (None: the newest); ``first`` and ``last`` cut the steps of
    series; ``points`` is how many points a series may have; ``scope`` is a parameter, or a layer and all below it.
    """

    step: int | None = None
    first: int | None = None
    last: int | None = None
    points: int = 1000
    scope: str = ""


@dataclass(frozen=True)
class Axis:
    """``scale`` is the one to begin with. ``steps``: it counts training steps, so that renderers can link it.

    ``linear`` is the half-width of the linear part of a symlog axis. ``names``: one for each unit, from 0.5 on, for
    axes of layers.
    """

    label: str = ""
    scale: Scale = "linear"
    range: tuple[float, float] | None = None
    steps: bool = False
    linear: float = 1.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Line:
    """Values over x. ``smooth``: noisy, a renderer may draw a moving average above. ``right``: on the right axis."""

    label: str
    x: Floats
    y: Floats
    tone: Tone = "first"
    right: bool = False
    smooth: bool = False
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, eq=False)
class Band:
    """The area between two curves, for example an error."""

    label: str
    x: Floats
    low: Floats
    high: Floats
    tone: Tone = "first"


@dataclass(frozen=True, eq=False)
class Bars:
    """Heights between edges: ``edges`` has one number more. ``flat``: they lie on their side, edges along y."""

    label: str
    edges: Floats
    heights: Floats
    tone: Tone = "first"
    right: bool = False
    flat: bool = False


@dataclass(frozen=True, eq=False)
class Heat:
    """A map of cells: ``values`` [rows, columns], row 0 at the bottom; edges have one number more than cells."""

    label: str
    x: Floats
    y: Floats
    values: Floats
    scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class Guide:
    """A straight line across the plot: where something is known, such as a threshold."""

    axis: Literal["x", "y"]
    at: float
    label: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Zone:
    """A strip across the plot from ``low`` to ``high``."""

    axis: Literal["x", "y"]
    low: float
    high: float
    label: str = ""
    tone: Tone = "faint"


@dataclass(frozen=True)
class Disc:
    """A disc around the origin; on a symlog axis it is drawn as the curve that it becomes."""

    radius: float
    label: str = ""
    tone: Tone = "first"


@dataclass(frozen=True, eq=False)
class Ticks:
    """Moments at which something happened, with a text each: gaps, numbers that are not finite, resumed runs."""

    label: str
    at: Floats
    texts: tuple[str, ...]
    tone: Tone = "bad"


Mark = Line | Band | Bars | Heat | Guide | Zone | Disc | Ticks


@dataclass(frozen=True, eq=False)
class Plot:
    """Axes and marks; later marks lie above earlier ones. ``upright``: shapes keep their proportions."""

    marks: tuple[Mark, ...]
    x: Axis = Axis()
    y: Axis = Axis()
    right: Axis | None = None
    place: Place = "main"
    upright: bool = False


@dataclass(frozen=True)
class Reading:
    """A number to be read off at once: the value at the moment shown, or a share."""

    label: str
    value: float
    text: str


@dataclass(frozen=True, eq=False)
class Chart:
    """What an instrument shows of a run.

    ``missing`` says what is not there and how to turn it on; then there are no plots. ``step`` is the moment shown,
    where there is one. ``notes`` are short sentences about the data, such as "12 of 300 steps were concave".
    """

    name: str
    title: str
    question: str
    plots: tuple[Plot, ...] = ()
    readings: tuple[Reading, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""
    step: int | None = None
    scope: str = ""
