"""Library: the runs a server shows, found again and again, each under an id that says nothing about where it lies."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from cockpit.errors import CockpitError
from cockpit.instruments.screens import SCREENS
from cockpit.instruments.shelf import instrument
from cockpit.store.cached import CachedRun
from cockpit.store.database import FILE
from cockpit.store.folder import logs_folder
from cockpit.store.memory import Memory
from cockpit.store.run import find_runs

PAUSE = 1.0
"""Seconds between two searches, at least; a search that takes long makes the pause ten times as long as itself."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A run: ``run`` is None where it cannot be read, and ``broken`` says why."""

    id: str
    name: str
    path: Path
    run: CachedRun | None
    broken: str = ""


class Library:
    """The runs at and below some paths.

    Nothing that a request says becomes part of a path: requests name ids, and ids are looked up here.

    Args:
        paths: runs, or folders of runs; none: the folder of named runs.
        memory: what is kept of them.

    Raises:
        CockpitError: a path does not exist.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]] = (), memory: Memory | None = None):
        self.roots = [_root(Path(path)) for path in paths] or [logs_folder()]
        self.memory = memory or Memory()
        self._entries: dict[str, Entry] = {}
        self._lock = Lock()
        self._next = 0.0

    def entries(self) -> dict[str, Entry]:
        """Return all runs by id; those that have appeared or vanished since are noticed within a second or so."""
        with self._lock:
            begun = time.monotonic()
            if begun >= self._next:
                self._entries = self._search()
                ended = time.monotonic()
                self._next = ended + max(PAUSE, 10 * (ended - begun))
            return self._entries

    def sequences(self) -> dict[str, int]:
        """Return the sequence number of every run that can be read."""
        found = {}
        for entry in self.entries().values():
            try:
                if entry.run is not None:
                    found[entry.id] = entry.run.sequence
            except Exception:  # deleted a moment ago, or damaged
                continue
        return found

    def read_newest(self) -> None:
        """Read what the first screen of the newest run needs, so that it is in memory when somebody asks."""
        try:
            runs = [entry.run for entry in self.entries().values() if entry.run is not None]
            run = max(runs, key=lambda one: one.path.stat().st_mtime, default=None)
            if run is None:
                return
            for name in (name for row in SCREENS[0].rows for column in row for name in column.instruments):
                instrument(name).chart(run)
        except Exception:  # whoever asks will be told
            return

    def _search(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for root in self.roots:
            real = root.resolve()
            for folder in find_runs(root):
                path = folder.resolve()
                if (path / FILE).resolve().is_relative_to(real):  # no link leads out of what was asked for
                    id = blake2b(str(path).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
                    found.setdefault(id, self._entry(id, _name(folder, root), path))
        return found

    def _entry(self, id: str, name: str, path: Path) -> Entry:
        """Return what is known, or open it; what could not be opened is tried again every time."""
        known = self._entries.get(id)
        if known is not None and known.run is not None:
            return known
        try:
            return Entry(id, name, path, CachedRun(path, self.memory))
        except Exception as error:  # whatever lies there, the other runs are shown
            return Entry(id, name, path, None, reason(error, path))


def reason(error: Exception, path: Path) -> str:
    """Say why a run cannot be read, without saying where it lies."""
    text = str(error) if isinstance(error, CockpitError) else f"{type(error).__name__}: {error}"
    return text.replace(str(path / FILE), FILE).replace(str(path), "the folder")


def _root(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise CockpitError(f"{path} does not exist.")
    if path.is_dir():
        return path
    if path.name != FILE:
        raise CockpitError(f"{path} is neither a run nor a folder of runs.")
    return path.parent


def _name(folder: Path, root: Path) -> str:
    """Return the name of a run as ``cockpit list`` gives it."""
    return str(folder.relative_to(root)) if folder != root else folder.absolute().name
