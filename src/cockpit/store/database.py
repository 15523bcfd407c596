"""Opening run.db: to write, creating or continuing a run, and to read, without leaving a trace."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path

from cockpit.errors import CockpitError

FILE = "run.db"
APPLICATION = 0x434B5054
VERSION = 1


def check(db: sqlite3.Connection, path: Path) -> bool:
    """Return whether a run is in the file (an empty file holds none yet); refuse files that are not ours."""
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.OperationalError:  # locked, unreadable: says nothing about what it is
        raise
    except sqlite3.DatabaseError as error:
        raise CockpitError(
            f"{path} is not a run: {error}. Choose another folder or move the file away."
        ) from error
    if not tables and application in (0, APPLICATION):
        return False
    if application != APPLICATION:
        raise CockpitError(
            f"{path} is a SQLite file of another program. Choose another folder or move the file away."
        )
    if version > VERSION:
        raise CockpitError(
            f"{path} was written by a newer Cockpit (schema {version}, this one knows {VERSION}). "
            "Update the package, or choose another folder."
        )
    return True


def refuse_foreign(folder: Path) -> None:
    """Raise a `CockpitError` if the folder holds a run.db that this version must not touch."""
    path = folder / FILE
    if not path.is_file():
        return
    try:
        with closing(sqlite3.connect(_uri(path, "mode=ro"), uri=True, timeout=0.2)) as db:
            check(db, path)
    except sqlite3.Error:  # busy or unreadable at the moment; the writer finds out when it gets in
        return


def open_to_write(folder: Path) -> sqlite3.Connection:
    """Open the run in a folder, creating it where there is none; transactions are explicit."""
    path = folder / FILE
    db = sqlite3.connect(path, timeout=1.0, isolation_level=None)
    try:
        begun = check(db, path)
        # a commit survives the death of the process; the last ones may be lost with the power, the file not
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {64 * 2**20}")
        if not begun:
            schema = resources.files("cockpit.store").joinpath("schema.sql").read_text(encoding="utf-8")
            db.executescript(f"BEGIN IMMEDIATE;\n{schema}\nCOMMIT;")
    except BaseException:
        db.close()
        raise
    return db


def close_for_good(db: sqlite3.Connection) -> None:
    """Fold the log into the file and leave WAL mode, so that the file can be read from a read-only place.

    Leaving WAL mode fails while a reader is connected; readers are short, so a second try is usually enough,
    and a file left in WAL mode is complete as well.
    """
    db.execute("PRAGMA busy_timeout = 200")
    for _ in range(3):
        try:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode = DELETE")
            break
        except sqlite3.OperationalError:
            time.sleep(0.05)
    db.close()


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file for reading and hold one snapshot of it inside the block.

    The connection lives only as long as the block: a connected reader would keep the writer from folding its
    log into the file at the end.
    """
    try:
        with closing(_connect_to_read(path)) as db:
            yield db
    except sqlite3.Error as error:
        raise CockpitError(f"{path} cannot be read: {error}.") from error


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Return a read-only connection inside a read transaction."""
    try:
        return _begin(
            sqlite3.connect(_uri(path, "mode=ro"), uri=True, timeout=5.0, isolation_level=None), path
        )
    except sqlite3.OperationalError as error:
        log = path.with_name(path.name + "-wal")
        busy = error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy or (log.exists() and log.stat().st_size):
            raise
        # WAL mode needs a writable folder for its index; a file whose log is empty is complete by itself
        db = sqlite3.connect(_uri(path, "mode=ro&immutable=1"), uri=True, isolation_level=None)
        return _begin(db, path)


def _begin(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("BEGIN")
        if not check(db, path):
            raise CockpitError(f"{path} holds no run yet: it is empty.")
    except BaseException:
        db.close()
        raise
    return db


def _uri(path: Path, options: str) -> str:
    return f"{path.absolute().as_uri()}?{options}"
