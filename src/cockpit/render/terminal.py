"""The terminal: lines that are redrawn in place where that is possible, keys, and words for progress bars."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np

from cockpit.errors import CockpitError
from cockpit.render.panel import ASCII, BLOCKS, STYLES, Spans
from cockpit.store.run import Run

POSTFIX = ("alpha", "norm_test", "grad_norm", "hess_max_ev")
"""What a progress bar shows unless told otherwise."""
_ends: dict[tuple[str, str], int] = {}
"""Where reading for a progress bar ended: (run, quantity) to step."""


class Terminal:
    """A stream that shows lines in place of those it showed before, if it can: see `live`.

    A stream that is closed, or whose reader has gone, is written to no more; nothing is raised, as whoever draws may
    have better things to do. `failure` says why.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._drawn = stream, (0, 0, 0)
        self.failure: OSError | None = None
        try:
            tty = stream is not None and stream.isatty()
        except ValueError:
            tty, stream = False, None
        if stream is None:  # closed
            self.failure = BrokenPipeError("the stream is closed")
        robot = os.environ.get("CI", "").lower() not in ("", "0", "false")
        self.live = tty and os.environ.get("TERM") not in ("dumb", "unknown") and not robot
        self._colour = self.live and not os.environ.get("NO_COLOR")
        self._code = getattr(stream, "encoding", None) or "ascii"
        self.blocks = BLOCKS if self._plain(BLOCKS) == BLOCKS else ASCII

    def size(self) -> tuple[int, int]:
        """Return (columns, lines) that can be written to; the variables COLUMNS and LINES come first."""
        try:
            found = os.get_terminal_size(self._stream.fileno() if self._stream else -1)
        except (OSError, ValueError):
            found = os.terminal_size((120, 24))
        columns, lines = (
            _whole(name) or size for name, size in zip(("COLUMNS", "LINES"), found, strict=True)
        )
        return max(20, columns - 1), max(4, lines - 1)

    def draw(self, lines: Sequence[Spans]) -> None:
        """Show lines in place of those drawn before."""
        drawn, columns, height = self._drawn
        now = self.size()
        begin = f"\x1b[{drawn}A\r" if drawn else ""
        if drawn and now != (columns, height):  # after a resize nobody knows where the old lines are
            begin = "\x1b[H\x1b[2J"
        self._drawn = (len(lines), *now)
        self.write(begin + "".join(f"{self._styled(line)}\x1b[K\n" for line in lines) + "\x1b[J")

    def erase(self) -> None:
        """Take away the lines drawn, and nothing above them; after a resize some of them may stay."""
        drawn = self._drawn[0]
        if drawn:
            self._drawn = (0, 0, 0)
            self.write(f"\x1b[{drawn}A\r\x1b[J")

    def write(self, text: str) -> None:
        """Write text at once; characters that the stream does not know become question marks."""
        if self.failure or self._stream is None:
            return
        try:
            self._stream.write(self._plain(text))
            self._stream.flush()
        except OSError as error:
            self.failure = error
        except ValueError as error:  # closed meanwhile
            self.failure = BrokenPipeError(str(error))

    def _styled(self, line: Spans) -> str:
        if not self._colour:
            return "".join(text for text, _ in line).rstrip()
        return "".join(
            f"\x1b[{STYLES[style]}m{text}\x1b[0m" if STYLES[style] else text for text, style in line
        )

    def _plain(self, text: str) -> str:
        return text.encode(self._code, "replace").decode(self._code)


class Keys:
    """The keys pressed meanwhile, without waiting for the return key; `heard` says whether there is a keyboard."""

    def __init__(self, wanted: bool) -> None:
        self._file, self._before, self._modes, self.heard = -1, None, None, False
        if wanted and os.name == "posix" and sys.stdin is not None:
            try:
                file = sys.stdin.fileno()
                # who is in the background is stopped when touching the terminal
                if os.isatty(file) and os.tcgetpgrp(file) == os.getpgrp():
                    self._file, self._modes, self.heard = file, import_module("termios"), True
            except (OSError, ValueError):
                pass

    def __enter__(self) -> Self:
        if self._modes:
            self._before = self._modes.tcgetattr(self._file)
            import_module("tty").setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._modes:
            with suppress(self._modes.error):  # the terminal is gone
                self._modes.tcsetattr(self._file, self._modes.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return what was pressed within so many seconds, or nothing."""
        if not self.heard:
            time.sleep(seconds)
            return ""
        if not select.select([self._file], [], [], seconds)[0]:
            return ""
        try:
            pressed = os.read(self._file, 64)
        except OSError:
            pressed = b""
        self.heard = bool(pressed)  # at the end of input nobody types any more
        return pressed.decode(errors="replace")


def postfix(source: Any, quantities: Sequence[str] = POSTFIX) -> dict[str, float]:
    """Return the newest values of some quantities, for the end of a progress bar: ``bar.set_postfix(postfix(run))``.

    Args:
        source: a `Run`, its path, or the `Cockpit` that writes it.
        quantities: their names; those that were not recorded, or are not finite, are left out.
    """
    place = getattr(source, "run", source)
    found: dict[str, float] = {}
    try:
        run = place if isinstance(place, Run) else Run(place)
        there = run.names()
        found = {name: _newest(run, name) for name in quantities if name in there}
    except (CockpitError, OSError, TypeError):
        pass  # nothing is written, or not yet; a progress bar must not stop a training
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _newest(run: Run, name: str) -> float:
    """Return the last value of a quantity; reading goes on where it ended the last time."""
    key = (str(run.path), name)
    series = run.series(name, since=_ends.get(key, 0))
    if not len(series):  # the run was set back
        series = run.series(name)
    if not len(series) or not isinstance(series.values, np.ndarray):
        return float("nan")
    _ends[key] = int(series.steps[-1])
    return float(series.values[-1])


def _whole(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0
