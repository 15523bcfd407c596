"""Terminals for tests: a stream that only claims to be one, and a real one with what it would show."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

START = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from cockpit.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Fake(io.StringIO):
    """A stream that says of itself what it is told to."""

    def __init__(self, tty: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self.tty, self._encoding = tty, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return super().isatty() or self.tty  # raises where it is closed


class Window:
    """A terminal window: a child process in a pseudo terminal, and what it would show."""

    def __init__(self, command: list[str], columns: int, lines: int, **variables: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "LINES")}
        self.child = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=kept | variables,
        )
        os.close(slave)
        self.text, self._decoder = "", codecs.getincrementaldecoder("utf-8")()

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.columns = columns

    def read(self, seconds: float) -> bool:
        """Take in what was written; false at the end."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.text += self._decoder.decode(os.read(self.master, 65536))
            except OSError:  # how Linux says that the other side is closed
                return False
        return True

    def until(self, seen: Callable[[list[str]], bool], seconds: float = 30.0) -> list[str]:
        """Wait until the screen shows something, and return it."""
        end = time.monotonic() + seconds
        while not seen(self.screen()):
            assert self.read(0.2) or seen(self.screen()), f"ended: {self.text!r}"
            assert time.monotonic() < end, "\n".join(self.screen())
        return self.screen()

    def ended(self) -> int:
        while self.read(0.2) and self.child.poll() is None:
            pass
        status = self.child.wait(30)
        while select.select([self.master], [], [], 0)[0] and self.read(0):
            pass
        return status

    def screen(self) -> list[str]:
        """Return the lines as a terminal shows them; a sequence that it need not know fails."""
        lines, y, x = [""], 0, 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", self.text):
            if part == "\n":
                y += 1
                lines += [""] * (y + 1 - len(lines))
            elif part == "\r":
                x = 0
            elif re.fullmatch(r"\x1b\[\d+A", part):
                y -= int(part[2:-1])
                assert y >= 0
            elif part == "\x1b[H":
                y, x = 0, 0
            elif part == "\x1b[2J":
                lines = [""]
            elif part == "\x1b[K":
                lines[y] = lines[y][:x]
            elif part == "\x1b[J":
                lines[y:] = [lines[y][:x]]
            elif part[0] != "\x1b":
                lines[y] = lines[y].ljust(x)[:x] + part + lines[y][x + len(part) :]
                x += len(part)
            else:
                assert re.fullmatch(r"\x1b\[[0-9;]*m", part), repr(part)
        return [line.rstrip() for line in lines]
