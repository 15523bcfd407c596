"""The panel of a run below what a script writes: erased before each of its writes, drawn again after them."""

from __future__ import annotations

import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from cockpit.errors import CockpitError
from cockpit.render.follow import Watch
from cockpit.render.panel import panel
from cockpit.render.terminal import Terminal
from cockpit.store.run import Run

OFTEN, REST = 0.5, 1.5
"""Seconds between two drawings, and between two readings of all instruments."""
MOVES = re.compile(r"\r(?!\n)|[\b\v\f]|\x1b(?!\[[0-9;]*m)")
"""What moves the cursor: all but colours, at which escape sequences end that leave it in its place."""
OWN_WAY = ("buffer", "fileno", "detach")
"""Who asks a stream for one of these may write past us."""


class Stream:
    """Standard output or error of the script; all but writing is done by the real one."""

    def __init__(self, real: TextIO, live: Live) -> None:
        self._real, self._live = real, live

    def write(self, text: str) -> int:
        """Write, with the panel out of the way."""
        with self._live.lock:
            self._live.make_way(text)
            return self._real.write(text)

    def writelines(self, lines: Any) -> None:
        """Write texts one after another."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Any:
        return iter(self._real)

    def __getattr__(self, name: str) -> Any:
        if name in OWN_WAY:
            self._live.give_up()
        return getattr(self._real, name)


class Live:
    """Draws the panel of one run, the first; gives up for good when the script draws something itself."""

    def __init__(self, terminal: Terminal) -> None:
        self.lock = threading.RLock()
        self._terminal, self._size = terminal, (0, 0)
        self._line_open = self._gone = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._streams: dict[str, Stream] = {}
        # a child that was forked amid a drawing would wait for ever for locks of the stream
        os.register_at_fork(
            before=self.lock.acquire, after_in_parent=self.lock.release, after_in_child=self._forked
        )

    def stand_between(self) -> None:
        """Put ourselves before the streams of the script that go to the terminal."""
        for name in ("stdout", "stderr"):
            real = getattr(sys, name)
            if real is not None and real.isatty():
                self._streams[name] = Stream(real, self)
                setattr(sys, name, self._streams[name])

    def show(self, folder: Path) -> None:
        """Begin to draw a run."""
        if self._thread is None and not self._gone:
            self._thread = threading.Thread(target=self._draw_on, args=(folder,), daemon=True)
            self._thread.start()

    def make_way(self, text: str) -> None:
        """Erase the panel, as the script is about to write; with the lock held."""
        if self._gone or not text:
            return
        self._terminal.erase()
        self._line_open = not text.endswith("\n")
        if MOVES.search(text):
            self._gone = True

    def give_up(self) -> None:
        """Erase the panel and never draw it again."""
        with self.lock:
            if not self._gone:
                self._gone = True
                self._terminal.erase()

    def close(self) -> None:
        """Erase the panel and step aside; whoever still holds one of our streams writes through it."""
        self._ended.set()
        self.give_up()
        for name, stream in self._streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream._real)
        self._streams.clear()

    def _forked(self) -> None:
        """Draw and erase nothing in a child: the panel is its parent's."""
        self.lock, self._gone = threading.RLock(), True

    def _draw_on(self, folder: Path) -> None:
        watch: Watch | None = None
        while not self._ended.wait(OFTEN) and not self._gone:
            try:
                watch = watch or Watch(Run(folder), rest=REST)
                columns, lines = self._terminal.size()
                now = watch.status()
                # room is scarce: a third of the window is the script's, and rows without data have none
                now = replace(now, rows=tuple(row for row in now.rows if not row.missing))
                drawn = panel(now, columns, lines - max(2, lines // 3), self._terminal.blocks)
                self._draw(drawn, (columns, lines))
            except (CockpitError, OSError):  # not written yet
                continue
            except Exception:  # a panel is not worth a traceback in the script's output
                self.give_up()

    def _draw(self, drawn: Any, size: tuple[int, int]) -> None:
        with self.lock:
            if self._gone or self._line_open:  # a line that the script has begun must stay together
                return
            if size != self._size:
                self._terminal.erase()
            self._size = size
            for stream in self._streams.values():
                stream._real.flush()
            self._terminal.draw(drawn)
