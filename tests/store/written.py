"""What tests of the writer write, in this process or in one that may be killed, and whether the file is sound."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cockpit.store import worker
from cockpit.store.record import Record

HEADER = """
import os, sys, time, warnings
from pathlib import Path
from cockpit.store.record import Event, Record
from cockpit.store.writer import Writer
folder = Path(sys.argv[1])
"""


def child(script: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HEADER + script, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(start: int, stop: int, value: float = 1.0) -> list[Record]:
    return [Record(step, "loss", value) for step in range(start, stop)]


def sound(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon after a failure, so that tests of recovery are short."""
    monkeypatch.setattr(worker, "PATIENCE", 0.1)
    monkeypatch.setattr(worker, "INTERVAL", 0.05)
