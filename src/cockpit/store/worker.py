"""The writing thread: three transactions a second, each again and again until it succeeds."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from cockpit.errors import CockpitError
from cockpit.store.codec import pack_json
from cockpit.store.database import FILE, close_for_good, open_to_write
from cockpit.store.inbox import Dropped, Given, Inbox, Item, Meta, Noted, Rewind, count, dropped
from cockpit.store.record import Event
from cockpit.store.tables import Tables

INTERVAL = 0.3
"""Seconds between transactions."""

PATIENCE = 5.0
"""The longest pause between two attempts while writing fails, in seconds."""

HEARTBEAT = 10.0
"""Seconds between signs of life when there is nothing to write."""


class Trouble:
    """The first thing that went wrong, for the training thread to tell."""

    def __init__(self) -> None:
        self.text = ""

    def note(self, text: str) -> None:
        """Keep the first text."""
        self.text = self.text or text


def work(inbox: Inbox, trouble: Trouble, folder: Path) -> None:
    """Write what comes into the inbox until it is closed: the thread's whole life.

    The connection is known to this frame only: a forked child inherits no reference to it and so cannot close
    it, which would release the parent's locks.
    """
    desk = Desk(inbox, trouble, folder)
    pause, closed = INTERVAL, False
    while not closed:
        items, closed = inbox.wait(pause)
        try:
            if not items and not closed and inbox.quiet is not None:
                inbox.quiet()
            desk.write(items)
            pause = INTERVAL
        except (sqlite3.Error, OSError, CockpitError) as error:
            trouble.note(f"{type(error).__name__}: {error}")
            desk.leave()
            pause = min(2 * pause, PATIENCE)
        except Exception as error:  # a fault of ours: give these items up rather than fail for ever
            trouble.note(f"{type(error).__name__}: {error}; {len(items)} batches of records are lost")
            desk.leave()
            inbox.drop(dropped(tuple(chain.from_iterable(item for item in items if isinstance(item, tuple)))))
            inbox.remove(len(items), 0)
        desk.tidy()
    desk.end()


class Desk:
    """An open file, the tables in it, and what must be known to open it again."""

    def __init__(self, inbox: Inbox, trouble: Trouble, folder: Path):
        self._inbox = inbox
        self._trouble = trouble
        self._folder = folder
        self._folder_made = False
        self._meta: dict[str, str] = {}  # all of it, for a file that has to be begun anew
        self._db: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._alive = 0.0

    def write(self, items: list[Item]) -> None:
        """Write items in one transaction and take them out of the inbox."""
        if self._db is not None and _identity(self._folder / FILE) != self._file:
            self.leave()  # deleted or replaced; SQLite would go on writing into the old file, unseen
        if self._db is None:
            self._enter()
        if items:
            lost = self._inbox.take_dropped()
            try:
                with self._transaction():
                    written = self._put(items)
                    self._report(lost)
            except BaseException:
                self._inbox.drop(lost)  # not on record yet
                raise
            self._inbox.remove(len(items), written)
        elif time.monotonic() - self._alive > HEARTBEAT:
            with self._transaction(changed=False):
                pass

    def tidy(self, now: bool = False) -> None:
        """Move numbers into chunks when it is time; a failure costs speed, not data."""
        if self._db is None or not (now or self._tables.wants_compaction):
            return
        try:
            with self._transaction(changed=False):
                self._tables.compact()
        except Exception as error:
            self._trouble.note(f"{type(error).__name__}: {error}")
            self.leave()

    def leave(self) -> None:
        """Close the file after a failure; the next attempt opens it again."""
        db, self._db = self._db, None
        with suppress(sqlite3.Error):
            if db is not None:
                db.close()

    def end(self) -> None:
        """Mark the run as ended and leave one complete file behind."""
        try:
            if self._db is not None:
                with self._transaction():
                    self._tables.put_meta({"ended": _now()})
                self.tidy(now=True)
            if self._db is not None:
                close_for_good(self._db)
        except sqlite3.Error as error:
            self._trouble.note(f"{type(error).__name__}: {error}")
            self.leave()

    def _enter(self) -> None:
        if not self._folder_made:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder_made = True  # from now on a missing folder was deleted by someone: leave it so
        self._db = open_to_write(self._folder)
        self._file = _identity(self._folder / FILE)
        self._tables = Tables(self._db)
        with self._transaction():
            writer = {"pid": os.getpid(), "host": socket.gethostname()}
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('started', ?)", (_now(),))
            self._tables.put_meta({**self._meta, "ended": "null", "writer": pack_json(writer)})

    @contextmanager
    def _transaction(self, changed: bool = True) -> Iterator[None]:
        assert self._db is not None
        self._db.execute("BEGIN IMMEDIATE")
        yield
        self._tables.touch(changed)
        self._db.execute("COMMIT")  # after an error the connection is closed instead, which rolls back
        self._alive = time.monotonic()

    def _put(self, items: list[Item]) -> int:
        """Put items into the tables in order; return how many records that were."""
        written = 0
        run: list[tuple[Given, ...]] = []
        for item in [*items, None]:
            if isinstance(item, tuple):
                run.append(item)
                continue
            written += self._put_records(run)  # what comes next may refer to them
            run = []
            if isinstance(item, Meta):
                self._meta.update(item.values)
                self._tables.put_meta(item.values)
            elif isinstance(item, Noted):
                self._tables.put_event(item.event, item.data)
            elif isinstance(item, Rewind):
                self._tables.rewind(item.step)
        return written

    def _put_records(self, run: list[tuple[Given, ...]]) -> int:
        items = list(chain.from_iterable(run))
        refused = self._tables.put(items)
        if refused:
            text = f"{len(refused)} records cannot be stored, for example {refused[0]}"
            self._tables.put_event(Event(0, "refused", text), pack_json({"records": refused[:10]}))
            self._trouble.note(text)
        return count(items) - len(refused)

    def _report(self, lost: Dropped | None) -> None:
        if lost is not None:
            text = f"{lost.count} records were lost: the disk did not take them and the buffer was full"
            data = {"records": lost.count, "first_step": lost.first, "last_step": lost.last}
            self._tables.put_event(Event(lost.last, "dropped", text), pack_json(data))


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells this file from another one at the same place."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _now() -> str:
    """Return Unix time as JSON."""
    return pack_json(time.time())
