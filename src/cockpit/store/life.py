"""Whether someone still writes to a run."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from typing import Literal

Life = Literal["running", "finished", "ended without close"]

SILENCE = 35.0
"""Seconds without a sign of life after which a writer counts as gone; it gives one every ten seconds."""


def life(db: sqlite3.Connection, changed: float) -> Life:
    """Return whether a run is being written, was closed, or its process died.

    ``changed`` is when the file was written to: until the first transaction it is the only sign of life.
    """
    found = db.execute("SELECT key, value FROM meta WHERE key IN ('ended', 'writer')")
    meta = {key: json.loads(value) for key, value in found}
    if meta.get("ended"):
        return "finished"
    heartbeat = db.execute("SELECT heartbeat FROM state").fetchone()[0]
    silent = time.time() - (heartbeat or changed) > SILENCE
    return "ended without close" if silent or _gone(meta.get("writer") or {}) else "running"


def _gone(writer: dict[str, object]) -> bool:
    """Say whether the writing process was one of this machine and exists no more."""
    pid = writer.get("pid")
    if os.name != "posix" or writer.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False  # only its silence can tell
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
