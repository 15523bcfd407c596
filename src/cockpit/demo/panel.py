"""Progress of the demo: the panel of `cockpit show --terminal`, or a plain table where nothing can be redrawn."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from cockpit.demo.training import Moment
from cockpit.errors import CockpitError
from cockpit.render.follow import Watch
from cockpit.render.panel import clock, panel, percent
from cockpit.render.status import Status
from cockpit.render.terminal import Terminal, postfix
from cockpit.store.run import Run

COLUMNS = (("alpha", "alpha", "+.2f"), ("norm_test", "noise", ".2f"), ("hess_max_ev", "sharpness", ".1f"))
"""What the table shows besides loss and accuracy: quantity, heading, format."""


class Panel:
    """Shows a training; what the instruments say is read from the run's file, as any other reader would."""

    def __init__(self, stream: TextIO | None, run: Path | None) -> None:
        self._terminal, self._run = Terminal(stream), run
        self._watch: Watch | None = None
        self._drawn = -math.inf
        self._headed = False
        self._moment: Moment | None = None

    def show(self, moment: Moment) -> None:
        """Show where the training is, now and then."""
        self._moment = moment
        if self._terminal.live:
            if moment.step == moment.steps or time.monotonic() - self._drawn > 0.25:
                self._draw(moment)
        elif moment.step == moment.steps or moment.step % max(1, moment.steps // 10) == 0:
            self._row(moment)

    def close(self) -> None:
        """Show once more, when all is written."""
        if self._terminal.live and self._moment is not None:
            self._draw(self._moment)

    def _draw(self, moment: Moment) -> None:
        seen = self._seen()
        rate = moment.step / moment.seconds if moment.seconds else None
        loss = moment.loss if math.isfinite(moment.loss) else None
        # the file is up to a second behind the training
        now = replace(
            seen, step=moment.step, total=moment.steps, seconds=moment.seconds, rate=rate, loss=loss
        )
        self._terminal.draw(panel(now, *self._terminal.size(), self._terminal.blocks))
        self._drawn = time.monotonic()

    def _seen(self) -> Status:
        try:
            if self._watch is None and self._run is not None:
                self._watch = Watch(Run(self._run), rest=1.5)
            if self._watch is not None:
                return self._watch.status()
        except (CockpitError, OSError):  # not written yet
            pass
        return Status("demo" if self._run is None else self._run.name, "running")

    def _row(self, moment: Moment) -> None:
        if not self._headed:
            self._print("step", "loss", "accuracy", *(heading for _, heading, _ in COLUMNS), "left")
            self._headed = True
        found = postfix(self._run, [name for name, _, _ in COLUMNS])
        readings = (format(found[name], form) if name in found else "-" for name, _, form in COLUMNS)
        left = clock(moment.seconds * (moment.steps / moment.step - 1))
        step = f"{moment.step}/{moment.steps}"
        self._print(step, f"{moment.loss:.3f}", percent(moment.accuracy), *readings, left)

    def _print(self, *cells: str) -> None:
        self._terminal.write("".join(f"{cell:>10}" for cell in cells) + "\n")
