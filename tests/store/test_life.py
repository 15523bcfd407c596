"""Whether someone still writes to a run."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from cockpit.store.database import open_to_write
from cockpit.store.life import SILENCE
from cockpit.store.run import Run
from cockpit.store.writer import Writer


def test_a_file_made_this_moment_is_running(tmp_path: Path) -> None:
    open_to_write(tmp_path).close()  # what a writer does before its first transaction
    assert Run(tmp_path).status == "running"
    old = time.time() - SILENCE - 5
    os.utime(tmp_path / "run.db", (old, old))
    assert Run(tmp_path).status == "ended without close"


def test_a_writer_that_is_silent(tmp_path: Path) -> None:
    def set_heartbeat(when: float) -> None:
        with closing(sqlite3.connect(tmp_path / "run.db")) as db, db:
            db.execute("UPDATE state SET heartbeat = ?", (when,))
            db.execute("UPDATE meta SET value = 'null' WHERE key = 'ended'")

    Writer(tmp_path, {}).close()
    assert Run(tmp_path).status == "finished"
    set_heartbeat(time.time())
    assert Run(tmp_path).status == "running"
    set_heartbeat(time.time() - SILENCE - 5)  # however young the file is
    assert Run(tmp_path).status == "ended without close"
