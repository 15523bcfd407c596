"""Progress in the terminal: a panel that is redrawn, or a plain table where nothing can be redrawn."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from cockpit.demo.training import Moment
from cockpit.errors import CockpitError
from cockpit.store.run import Run

INSTRUMENTS = (
    ("alpha", "alpha", "+.2f", "step length; 0 reaches the lowest point"),
    ("norm_test", "noise", ".2f", "gradient noise; above 0.9: batch too small"),
    ("hess_max_ev", "sharpness", ".1f", "curvature in the sharpest direction"),
)
LABEL, VALUE, CURVE, LEFT = 10, 8, 24, 11
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"


class Panel:
    """Shows a training; what the instruments say is read from the run's file, as any other reader would."""

    def __init__(self, stream: TextIO, run: Path | None) -> None:
        self._stream, self._run = stream, run
        self._redraws = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._redraws and not os.environ.get("NO_COLOR")
        self._curve = BLOCKS if _can_write(stream, BLOCKS) else ASCII
        self._losses: list[float] = []
        self._accuracies: list[float] = []
        self._drawn, self._last = 0, 0.0
        self._width, self._room = 79, CURVE

    def show(self, moment: Moment) -> None:
        """Show where the training is, now and then."""
        if math.isfinite(moment.loss):
            self._losses.append(moment.loss)
        if math.isfinite(moment.accuracy) and moment.accuracy not in self._accuracies[-1:]:
            self._accuracies.append(moment.accuracy)
        over = moment.step == moment.steps
        if self._redraws:
            if over or time.monotonic() - self._last > 0.25:
                self._redraw(self._lines(moment))
                self._last = time.monotonic()
        elif over or moment.step % max(1, moment.steps // 10) == 0:
            self._row(moment)

    def _redraw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._stream.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _lines(self, moment: Moment) -> list[str]:
        share = moment.step / moment.steps
        self._width = shutil.get_terminal_size().columns - 1
        self._room = max(4, min(CURVE, self._width - LABEL - VALUE - LEFT - 4))
        full = round(self._room * share)
        bar = self._curve[-1] * full + self._curve[0] * (self._room - full)
        left = (
            f"{clock(moment.seconds * (1 / share - 1))} left"
            if share < 1
            else f"{clock(moment.seconds)} in all"
        )
        lines = [
            self._line("step", f"{moment.step}/{moment.steps}", bar, left),
            self._line("loss", f"{moment.loss:.3f}", self.curve(self._losses), ""),
            self._line("accuracy", percent(moment.accuracy), self.curve(self._accuracies), "on test images"),
        ]
        for name, label, form, meaning in INSTRUMENTS:
            values = self._values(name)
            lines.append(self._line(label, number(values[-1:], form), self.curve(values), meaning))
        return lines

    def _line(self, label: str, value: str, curve: str, meaning: str) -> str:
        begin = LABEL + VALUE
        plain = f"{label:<{LABEL}}{value:>{VALUE}}  {curve:<{self._room}}"[: self._width]
        meaning = f"  {meaning}" if len(plain) + len(meaning) + 2 <= self._width else ""
        if not self._colour:
            return (plain + meaning).rstrip()
        return f"{plain[:begin]}\x1b[36m{plain[begin:]}\x1b[0;2m{meaning}\x1b[0m"

    def _row(self, moment: Moment) -> None:
        readings = [number(self._values(name)[-1:], form) for name, _, form, _ in INSTRUMENTS]
        if not self._drawn:
            self._print("step", "loss", "accuracy", *(label for _, label, _, _ in INSTRUMENTS), "left")
            self._drawn = 1
        left = clock(moment.seconds * (moment.steps / moment.step - 1))
        cells = (
            f"{moment.step}/{moment.steps}",
            f"{moment.loss:.3f}",
            percent(moment.accuracy),
            *readings,
            left,
        )
        self._print(*cells)

    def _print(self, *cells: str) -> None:
        print("".join(f"{cell:>10}" for cell in cells), file=self._stream, flush=True)

    def _values(self, name: str) -> list[float]:
        if self._run is None:
            return []
        try:
            values = Run(self._run).series(name).values
        except CockpitError:  # not written yet
            return []
        return [float(v) for v in values if isinstance(v, float) and math.isfinite(v)]

    def curve(self, values: Sequence[float]) -> str:
        """Draw the newest values as a line of blocks."""
        if not values:
            return ""
        # long series are thinned by means of equal stretches
        parts = np.array_split(np.asarray(values, dtype=float), min(len(values), self._room))
        heights = np.array([part.mean() for part in parts])
        low, high = float(heights.min()), float(heights.max())
        scale = (len(self._curve) - 1) / (high - low) if high > low else 0.0
        return "".join(self._curve[round((h - low) * scale)] for h in heights.tolist())


def number(newest: Sequence[float], form: str) -> str:
    """Write the newest value, or a dash."""
    return format(newest[0], form) if newest else "-"


def percent(share: float) -> str:
    """Write a share in percent, or a dash."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def clock(seconds: float) -> str:
    """Write minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
