"""CachedRun: a run that many ask at once and again and again, while it grows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from cockpit.store.memory import Memory
from cockpit.store.points import Points
from cockpit.store.record import Event, Histogram, Value
from cockpit.store.run import Run
from cockpit.store.series import Series, as_series
from cockpit.store.status import Texts

T = TypeVar("T")

ALL = -(2**63)
"""A step before every other."""

OVERLAP = 64
"""So many points are read again when a series has grown, to see whether it was really continued."""

TRUST = 60.0
"""Seconds after which a growing series is read anew as a whole: a value far back may have been replaced."""

YOUNG = 2.0
"""A file changed within so many seconds is looked at again even if it looks the same: its time is not exact."""


class CachedRun(Run):
    """Answers like a `Run`, but reads only what is new.

    `sequence` looks at the file; everything else answers as of the last look, except for `status`. Arrays in answers
    cannot be written to.

    Args:
        path: the run's folder, or its ``run.db``.
        memory: where series are kept; several runs can share one.
    """

    def __init__(self, path: str | os.PathLike[str], memory: Memory):
        super().__init__(path)
        self._memory = memory
        self._lock = RLock()
        self._small: dict[tuple[str | None, ...], Any] = {}  # answers of a few kilobytes, as of the last look
        self._stamp: tuple[tuple[int, int, int], ...] = ()
        self._looked = 0.0
        self._identity = 0
        self._sequence = -1
        self._life: object = None
        self._epoch = 0  # grows when what was read before may be wrong
        self._look(self._new_stamp())

    @property
    def sequence(self) -> int:
        """A number that grows with every change; asking for it is a look at the file."""
        with self._lock:
            stamp = self._new_stamp()
            newest = max((changed for _, changed, _ in stamp), default=0) / 1e9
            if stamp != self._stamp or newest > self._looked - YOUNG:
                self._look(stamp)
            return self._sequence

    @property
    def state(self) -> tuple[int, int]:
        """What was seen at the last look: as long as it is the same, so are all answers."""
        return self._epoch, self._sequence

    def names(self) -> list[str]:
        """Return the names of all quantities."""
        return list(self._once(("names",), super().names))

    def scopes(self, name: str) -> list[str]:
        """Return the scopes of a quantity, the model ("") first."""
        read = super().scopes
        return list(self._once(("scopes", name), lambda: read(name)))

    @property
    def meta(self) -> dict[str, Any]:
        """What is known about the run as a whole."""
        return dict(self._once(("meta",), self._read_meta))

    def events(self, kind: str | None = None) -> list[Event]:
        """Return what happened, in order; all of it, or one kind."""
        read = super().events
        return list(self._once(("events", kind), lambda: read(kind)))

    def steps(self) -> tuple[int, int | None]:
        """Return (how many points the longest series has, the last step of all)."""
        return self._once(("steps",), super().steps)

    def series(self, name: str, scope: str = "", since: int = 0, points: int | None = None) -> Series:
        """Return the values of a quantity, as `Run.series` does."""
        with self._lock:
            numbers = self._numbers(name, [scope])[scope]
            if numbers is None:
                return self._arrays(name, scope, since, points)
        return as_series(name, scope, numbers.since(since), points)

    def all_series(self, name: str, scopes: Sequence[str] | None = None, since: int = 0) -> list[Series]:
        """Return the values of a quantity for many scopes, as `Run.all_series` does."""
        wanted = self.scopes(name) if scopes is None else list(scopes)
        with self._lock:
            found = self._numbers(name, wanted)
            return [
                self._arrays(name, scope, since, None)
                if (numbers := found[scope]) is None
                else as_series(name, scope, numbers.since(since))
                for scope in wanted
            ]

    def _once(self, key: tuple[str | None, ...], read: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._small:
                self._small[key] = read()
            return cast("T", self._small[key])

    def _read_meta(self) -> dict[str, Any]:
        return super().meta

    def _new_stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when the file is written to, or is another one."""
        found = []
        for path in (self._file, self._file.with_name(self._file.name + "-wal")):
            if (state := _state(path)) is not None:
                found.append(state)
        return tuple(found)

    def _look(self, stamp: tuple[tuple[int, int, int], ...]) -> None:
        """Find out whether the run has changed, and whether it only grew."""
        looked, sequence = time.time(), super().sequence
        file = stamp[0][0] if stamp else 0
        if sequence != self._sequence or file != self._identity:
            self._small.clear()
            # numbers are written once and in order, except where a training was set back or taken up again
            meta, rewinds = self.meta, len(self.events("rewind"))
            life = (file, rewinds, meta.get("writer"), meta.get("ended"))
            if life != self._life or sequence < self._sequence:
                self._epoch += 1
            self._identity, self._life, self._sequence = file, life, sequence
        self._stamp, self._looked = stamp, looked

    def _numbers(self, name: str, scopes: Sequence[str]) -> dict[str, Points | None]:
        """Return all points of some series, None for those of arrays; what is not known yet is read at once."""
        held: dict[str, _Held] = {}
        found: dict[str, Points | None] = {}
        since: dict[str, int] = {}
        for scope in scopes:
            known: _Held | None = self._memory.get((self.path, name, scope))
            if known is None or known.epoch != self._epoch:
                since[scope] = ALL
            elif known.sequence == self._sequence:
                found[scope] = known.points
            else:
                held[scope], since[scope] = known, known.overlap()
        now = time.monotonic()
        new = self._points(name, since) if since else {}
        broken = {
            scope: ALL for scope in since if since[scope] != ALL and not held[scope].is_continued(new[scope])
        }
        new |= self._points(name, broken) if broken else {}
        for scope, points in new.items():
            read = now
            if since[scope] != ALL and scope not in broken and points is not None:
                points, read = held[scope].grown(points), held[scope].read
            found[scope] = self._keep(name, scope, read, points)
        return found

    def _keep(self, name: str, scope: str, read: float, points: Points | None) -> Points | None:
        size = 200
        if points is not None:
            points, size = self._with_common_steps(_frozen(points))
        self._memory.put((self.path, name, scope), _Held(self._epoch, self._sequence, read, points), size)
        return points

    def _with_common_steps(self, points: Points) -> tuple[Points, int]:
        """Return points and their size; series recorded at the same steps, as most are, share one array of them."""
        key, steps = (self.path,), points.steps
        common = self._memory.get(key)
        if common is None or not np.array_equal(common, steps):
            self._memory.put(key, steps, steps.nbytes)
            common = steps
        codes = 0 if points.status.codes is None else points.status.codes.nbytes
        return points._replace(steps=common), points.values.nbytes + codes + 200

    def _arrays(self, name: str, scope: str, since: int, points: int | None) -> Series:
        key = (self.path, name, scope, since, points)
        held = self._memory.get(key)
        if held is None or held[0] != (self._epoch, self._sequence):
            series = super().series(name, scope, since, points)
            values = series.values if isinstance(series.values, list) else []
            held = ((self._epoch, self._sequence), series)
            self._memory.put(key, held, 1000 + sum(map(_size, values)))
        return cast("Series", held[1])


class _Held(NamedTuple):
    """All points of a series; None where it holds arrays. ``read`` is when it was read as a whole."""

    epoch: int
    sequence: int
    read: float
    points: Points | None

    def overlap(self) -> int:
        """Return the step from which to read on: a few points again, or everything."""
        old = self.points
        if old is None or len(old.steps) <= OVERLAP or time.monotonic() - self.read > TRUST:
            return ALL
        return int(old.steps[-OVERLAP])

    def is_continued(self, new: Points | None) -> bool:
        """Say whether what was read from `overlap` on begins with what is held."""
        assert self.points is not None
        old = self.points.take(slice(-OVERLAP, None))
        if new is None:
            return False
        same = new.take(slice(OVERLAP))
        return (
            same.steps.tobytes() == old.steps.tobytes()
            and same.values.tobytes() == old.values.tobytes()
            and Texts(same.status, OVERLAP) == Texts(old.status, OVERLAP)
        )

    def grown(self, new: Points) -> Points:
        """Return what is held, with what came since."""
        assert self.points is not None
        return Points.join([self.points, new.take(slice(OVERLAP, None))])


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _frozen(points: Points) -> Points:
    for array in (points.steps, points.values):
        array.setflags(write=False)
    return points


def _size(value: Value) -> int:
    """Return the bytes of a value; edges are shared by many."""
    array = value.counts if isinstance(value, Histogram) else value
    return 100 + (array.nbytes if isinstance(array, np.ndarray) else 0)
