"""The bounded buffer between the training thread, which never waits, and the thread that writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cockpit.store.record import Event, Histogram, Record

LIMIT = 256 * 2**20
RECORD = 250
"""How many bytes may wait, and what one record costs: the object, its fields, its place in a list."""


@dataclass(frozen=True, eq=False)
class Rewind:
    """Continue from this step; what lies at or beyond it is superseded."""

    step: int


@dataclass(frozen=True, eq=False)
class Meta:
    """Keys to set, values already JSON."""

    values: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Noted:
    """An event and its data, already JSON."""

    event: Event
    data: str


Item = tuple[Record, ...] | Noted | Meta | Rewind


@dataclass(frozen=True)
class Dropped:
    """Records there was no room for: how many, and the steps they lie between."""

    count: int
    first: int
    last: int

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.count + other.count, min(self.first, other.first), max(self.last, other.last))


class Inbox:
    """What waits to be written, in order, and the counts that say how far the writing has come.

    When it is full, records are dropped and counted: arrays and histograms from half the limit on, numbers
    only at the limit. Events, meta data and rewinds are small, rare and always taken.
    """

    def __init__(self, limit: int = LIMIT):
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._hurry = False
        self._closed = False
        self._given = self._done = 0  # items put in and taken out for good, ever
        self._dropped: Dropped | None = None
        self.acknowledged = 0  # records committed

    def put(self, item: Item) -> None:
        """Add an item; never waits for the disk."""
        with self._changed:
            if self._closed:
                return
            size = RECORD
            if isinstance(item, tuple):
                item, size = self._admit(item)
            self._items.append((item, size))
            self._given += 1
            mark = self._limit // 8  # that much in one interval is worth a transaction of its own
            if self._size <= mark < self._size + size:
                self._hurry = True
                self._changed.notify_all()
            self._size += size

    def _admit(self, records: tuple[Record, ...]) -> tuple[tuple[Record, ...], int]:
        """Return the records there is room for, and their size."""
        free, taken, size = self._limit - self._size, [], 0
        if len(records) * RECORD <= free and all(type(record.value) is float for record in records):
            return records, len(records) * RECORD  # the usual case, without looking at each
        for record in records:
            detail = _detail(record)
            cost = size + RECORD + detail
            if cost > (free - self._limit // 2 if detail else free):
                self.drop(Dropped(1, record.step, record.step))
                continue
            if detail and isinstance(
                record.value, np.ndarray
            ):  # it may be a view of what training changes next
                record = replace(record, value=record.value.copy())
            taken.append(record)
            size = cost
        return tuple(taken), size

    def drop(self, dropped: Dropped | None) -> None:
        """Count records that will not be written."""
        with self._changed:
            if dropped is not None:
                self._dropped = dropped if self._dropped is None else self._dropped + dropped

    def take_dropped(self) -> Dropped | None:
        """Return what was dropped since the last call."""
        with self._changed:
            dropped, self._dropped = self._dropped, None
            return dropped

    def wait(self, seconds: float) -> tuple[list[Item], bool]:
        """Sleep until someone is in a hurry or the time is over; return what waits, and if it is the last.

        The items stay until `remove` is called, so a failed attempt loses nothing.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._hurry, seconds)
            self._hurry = False
            return [item for item, _ in self._items], self._closed

    def remove(self, count: int, records: int) -> None:
        """Take the oldest items out for good: written, or given up; ``records`` of them are on disk."""
        with self._changed:
            for _ in range(count):
                self._size -= self._items.popleft()[1]
            self._done += count
            self.acknowledged += records
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more, and ask for the rest to be written now."""
        with self._changed:
            self._closed = self._hurry = True
            self._changed.notify_all()

    def flush(self, timeout: float | None) -> bool:
        """Ask for everything so far to be written; wait for it and return whether it was."""
        with self._changed:
            goal = self._given
            if self._done >= goal:
                return True
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= goal, timeout)


def _detail(record: Record) -> int:
    """Return the bytes of a record's array or histogram; 0 for a number."""
    value = getattr(record, "value", None)
    if isinstance(value, Histogram):
        return int(value.counts.nbytes) + 1
    return int(value.nbytes) + 1 if isinstance(value, np.ndarray) and value.ndim else 0
