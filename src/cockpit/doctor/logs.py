"""The place runs are written to: may one write, is there room, does SQLite's write-ahead log work there?"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cockpit.doctor.check import Check
from cockpit.store.folder import logs_folder

GB = 10**9
NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "9p",
    "afs",
}


def logs() -> Iterator[Check]:
    """Look at the folder of named runs, or at the nearest one above it that exists."""
    folder = logs_folder().absolute()
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if not place.is_dir():
        advice = "Move that file away, or name another folder in the variable COCKPIT_LOGS."
        yield Check("run folder", "problem", f"{place} is not a folder", advice)
        return
    yield _writable(folder, place)
    yield _room(place)
    yield _sqlite(place)


def _writable(folder: Path, place: Path) -> Check:
    state = "exists" if folder.exists() else "will be made at the first run"
    if not os.access(place, os.W_OK | os.X_OK):
        advice = "Work in another folder, or name one in the variable COCKPIT_LOGS."
        return Check("run folder", "problem", f"{folder}: {place} cannot be written", advice)
    return Check("run folder", "ok", f"{folder} ({state})")


def _room(place: Path) -> Check:
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.1f} GB free"
    if free < 0.1 * GB:
        return Check("disk space", "problem", found, "A run needs some 10 to 100 MB: make room.")
    if free < GB:
        return Check("disk space", "warning", found, "Enough for a few runs of 10 to 100 MB; make room soon.")
    return Check("disk space", "ok", found)


def _sqlite(place: Path) -> Check:
    version = f"SQLite {sqlite3.sqlite_version}"
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".cockpit-doctor-", dir=place) as folder,
            closing(sqlite3.connect(Path(folder) / "try.db")) as db,
        ):
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            db.execute("CREATE TABLE try (x)")
    except (OSError, sqlite3.Error) as error:
        advice = "Name a folder on a local disk in the variable COCKPIT_LOGS."
        return Check("run file", "problem", f"{version} cannot write here: {error}", advice)
    kind = _file_system(place)
    if mode != "wal" or kind in NETWORK:
        why = f"a network file system ({kind})" if kind in NETWORK else f"journal mode {mode}, not wal"
        advice = (
            "Reading a run while it grows may fail here: name a local folder in the variable COCKPIT_LOGS."
        )
        return Check("run file", "warning", f"{version}, {why}", advice)
    return Check("run file", "ok", f"{version}, write-ahead log works")


def _file_system(place: Path) -> str:
    """Return the type of the file system a folder is on, where the system tells (Linux)."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = {str(p) for p in (place.resolve(), *place.resolve().parents)}
    found = [(len(where), kind) for where, kind in mounts if where in above]
    return max(found)[1] if found else ""
