"""Following a run in the terminal: a panel that is redrawn, or plain lines where nothing can be redrawn."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from cockpit.errors import CockpitError
from cockpit.render.panel import panel, summary
from cockpit.render.status import Status, status
from cockpit.render.terminal import Keys, Terminal
from cockpit.store.cached import CachedRun
from cockpit.store.database import FILE
from cockpit.store.memory import Memory
from cockpit.store.run import Run, find_runs

TICK = 0.25
"""Seconds between two looks at the run, the keys and the size of the window."""
REST = 0.5
"""Seconds between two readings of all instruments."""
PATIENCE = 4
"""Where reading takes long, its time times this lies between two readings: a fifth of a processor at most."""


class Watch:
    """Reads a run again and again: all instruments only when it has grown, and never so often that it costs much."""

    def __init__(self, run: Run, rest: float = REST) -> None:
        self._run, self._rest, self._sequence = CachedRun(run.path, Memory()), rest, -1
        self._next = self._read = 0.0
        self._seen: Status | None = None
        self._steps: deque[tuple[float, int]] = deque(maxlen=20)

    def status(self) -> Status:
        """Return where the run is now."""
        begun, sequence, life = time.monotonic(), self._run.sequence, self._run.status
        ended = self._seen is not None and life != self._seen.life
        if ended or begun >= self._next:
            if ended or sequence != self._sequence:
                self._sequence, self._read = sequence, begun
                self._seen = replace(status(self._run, time.time()), life=life)
                if self._seen.step is not None:
                    self._steps.append((begun, self._seen.step))
            self._next = time.monotonic() + max(self._rest, PATIENCE * (time.monotonic() - begun))
        assert self._seen is not None
        return self._timed(self._seen)

    def _timed(self, seen: Status) -> Status:
        """Return what was seen, with the time that has passed since, and the speed of the last steps."""
        if seen.life != "running":
            return seen
        rate = seen.rate
        if len(self._steps) > 1:
            (t0, s0), (t1, s1) = self._steps[0], self._steps[-1]
            rate = (s1 - s0) / (t1 - t0) if t1 - t0 > 2 and s1 >= s0 else rate
        seconds = None if seen.seconds is None else seen.seconds + time.monotonic() - self._read
        return replace(seen, rate=rate, seconds=seconds)


def follow(run: Run, stream: TextIO | None = None, every: float = 10.0, for_programs: bool = False) -> None:
    """Show a run until it ends, or until ``q`` or Ctrl-C is pressed.

    Args:
        run: the run, growing or not.
        stream: where to; standard output if None.
        every: seconds between two lines where nothing can be redrawn.
        for_programs: write a JSON object a line instead of anything else.
    """
    terminal, watch, line_due = Terminal(stream or sys.stdout), Watch(run), 0.0
    live = terminal.live and not for_programs
    with Keys(wanted=live) as keys, suppress(KeyboardInterrupt):
        while True:
            now = watch.status()
            over = now.life != "running"
            if live:
                key = "q" if keys.heard else "Ctrl-C"
                foot = "" if over else f"{key} ends this view; the training goes on"
                terminal.draw(panel(now, *terminal.size(), terminal.blocks, foot))
            elif over or time.monotonic() >= line_due:
                text = _json(now) if for_programs else summary(now, terminal.size()[0])
                terminal.write(text + "\n")
                line_due = time.monotonic() + every
            if terminal.failure:
                raise terminal.failure
            if over or "q" in keys.wait(TICK).lower():
                return


def chosen(paths: Sequence[Path], default: Path) -> Run:
    """Return the run to follow: the one that is named, or of those in folders the one written to last."""
    runs = [run for path in paths or [default] for run in _runs(path)]
    if not runs:
        if paths:
            return Run(paths[0])  # says what is wrong with it
        raise CockpitError(f"no runs in {default}")
    return Run(max(runs, key=_written))


def _json(now: Status) -> str:
    facts = {key: value for key, value in vars(now).items() if key not in ("rows", "events")}
    facts["readings"] = {row.name: row.reading for row in now.rows if row.reading}
    facts["events"] = [{"step": event.step, "kind": event.kind, "text": event.text} for event in now.events]
    return json.dumps(facts)


def _runs(path: Path) -> list[Path]:
    if path.name == FILE:
        return [path.parent]
    return [path] if (path / FILE).is_file() else find_runs(path)


def _written(folder: Path) -> float:
    """Return when a run was last written to."""
    files = (folder / FILE, folder / f"{FILE}-wal")
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
