"""Colours of figures, light and dark; tones and runs have the same ones on the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cockpit.instruments.chart import Tone
from cockpit.instruments.instrument import Group


@dataclass(frozen=True)
class Palette:
    """Colours as ``#rrggbb``.

    Attributes:
        paper: ground of the figure.
        card: ground of a panel.
        ink: titles.
        text: labels of axes, questions, notes.
        grid: lines of the grid.
        rule: frames and ticks.
        tones: of marks.
        runs: one for each of several runs; they differ in lightness too.
        heat: lowest to highest, in even steps.
        columns: grounds of the columns of a screen.
    """

    paper: str
    card: str
    ink: str
    text: str
    grid: str
    rule: str
    tones: Mapping[Tone, str]
    runs: tuple[str, ...]
    heat: tuple[str, ...]
    columns: Mapping[Group, str]

    def run(self, index: int) -> str:
        """Return the colour of the n-th run; they repeat."""
        return self.runs[index % len(self.runs)]


LIGHT = Palette(
    paper="#ffffff",
    card="#ffffff",
    ink="#1c2430",
    text="#4b5768",
    grid="#e9edf2",
    rule="#b4bfcc",
    tones={
        "first": "#2a55b0",
        "second": "#d2550f",
        "third": "#16876f",
        "fourth": "#955ce0",
        "neutral": "#4b5768",
        "faint": "#8592a3",
        "good": "#0d7d68",
        "bad": "#a80f22",
    },
    runs=("#2a8fe6", "#b04a00", "#0f6f6c", "#979400", "#1b2f9e", "#6a2a08", "#c66f9d", "#232a42"),
    heat=("#e3f2fc", "#b9d8f3", "#8fbcea", "#679fde", "#4680cb", "#2e60ad", "#1d4187", "#10255c"),
    # the paper's hues at 75 % on white
    columns={
        "step size": "#7796c2",
        "gradients": "#f5a066",
        "curvature": "#79b28c",
        "hyper-parameters": "#c0c0cb",
        "performance": "#c0c0cb",
        "auxiliary": "#7796c2",
        "layers": "#f5a066",
    },
)

DARK = Palette(
    paper="#0d1117",
    card="#141a22",
    ink="#e6edf5",
    text="#a9b6c6",
    grid="#222b37",
    rule="#445164",
    tones={
        "first": "#5c9df5",
        "second": "#ffa040",
        "third": "#76e0ac",
        "fourth": "#cfb2ff",
        "neutral": "#a9b6c6",
        "faint": "#697789",
        "good": "#3fc3a0",
        "bad": "#f9465f",
    },
    runs=("#6fb3ff", "#d09a00", "#14a08a", "#f2ea3e", "#7d6edd", "#cc5a12", "#f4b3bb", "#cdf5f2"),
    heat=("#16263f", "#1c3d68", "#265692", "#3a72b8", "#5a91d2", "#82b0e4", "#afcff1", "#dcedfb"),
    columns={
        "step size": "#2b4468",
        "gradients": "#7d431c",
        "curvature": "#2a5439",
        "hyper-parameters": "#37404d",
        "performance": "#37404d",
        "auxiliary": "#2b4468",
        "layers": "#7d431c",
    },
)
