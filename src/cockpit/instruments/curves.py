"""Quantities over the steps in one plot: the first on the left axis, a second one on the right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cockpit.instruments.chart import Axis, Line, Mark, Plot, Reading, Ticks, Tone, View
from cockpit.instruments.instrument import Source
from cockpit.instruments.traces import STEPS, Join, axis, trace

TONES: tuple[Tone, Tone] = ("first", "second")


@dataclass(frozen=True)
class Curve:
    """A quantity to be drawn: its name, what it is called in the legend and at the axis, how parameters join."""

    name: str
    words: str
    label: str
    join: Join = "single"
    smooth: bool = True


def curves(
    run: Source, view: View, *wanted: Curve, marks: tuple[Mark, ...] = ()
) -> tuple[Plot, tuple[Reading, ...], tuple[str, ...]]:
    """Return the plot of one or two quantities, their values at the moment, and notes; ``marks`` lie below."""
    lines: list[Line] = []
    ticks: list[Ticks] = []
    readings: list[Reading] = []
    notes: list[str] = []
    axes: list[Axis] = []
    for curve, tone in zip(wanted, TONES, strict=False):
        found = trace(run, curve.name, view, curve.join)
        line = found.line(curve.words, view, tone, right=bool(axes), smooth=curve.smooth)
        axes.append(axis(curve.label, line))
        lines.append(line)
        ticks += found.ticks()
        readings.append(found.reading(curve.words, view.step))
        notes += found.notes(f"{curve.words}: " if len(wanted) > 1 else "")
    plot = Plot((*marks, *lines, *merged(ticks)), STEPS, axes[0], axes[1] if len(axes) > 1 else None)
    return plot, tuple(readings), tuple(notes)


def merged(ticks: Iterable[Ticks]) -> tuple[Ticks, ...]:
    """Put ticks with the same label together, so that a legend names them once."""
    kinds: dict[str, list[Ticks]] = {}
    for one in ticks:
        kinds.setdefault(one.label, []).append(one)
    return tuple(
        Ticks(
            label,
            np.concatenate([one.at for one in same]),
            tuple(text for one in same for text in one.texts),
            same[0].tone,
        )
        for label, same in kinds.items()
    )
