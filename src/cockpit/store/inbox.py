"""The bounded buffer between the training thread, which never waits, and the thread that writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from cockpit.store.record import Column, Columns, Event, Histogram, Histograms, Numbers, Record

LIMIT = 256 * 2**20
RECORD = 250
"""How many bytes may wait, and what one record or column costs: the object, its fields, its place in a list."""

PLAIN = (float, Numbers, type(None))
"""What a column of numbers is made of."""


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


Given = Record | Column | Columns
Item = tuple[Given, ...] | Noted | Meta | Rewind


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
        self._mark = limit // 8  # that much in one interval is worth a transaction of its own
        self._items: deque[Item] = deque()
        self._sizes: deque[int] = deque()  # not pairs of both: they would be one more object for each item
        self._size = 0
        self._lock = threading.RLock()  # entered again by a signal handler that flushes or closes
        self._changed = threading.Condition(self._lock)
        self._hurry = False
        self._closed = False
        self._given = self._done = 0  # items put in and taken out for good, ever
        self._dropped: Dropped | None = None
        self.acknowledged = 0  # records committed
        self.quiet: Callable[[], None] | None = None
        """Called by the writing thread when nothing has come for a while."""

    def put(self, item: Item) -> None:
        """Add an item; never waits for the disk."""
        with self._lock:
            if self._closed:
                return
            size = RECORD
            if type(item) is tuple:
                item, size = self._admit(item)
            self._items.append(item)
            self._sizes.append(size)
            self._given += 1
            if self._size <= self._mark < self._size + size:
                self._hurry = True
                self._changed.notify_all()
            self._size += size

    def _admit(self, items: tuple[Given, ...]) -> tuple[tuple[Given, ...], int]:
        """Return the records and columns there is room for, and their size."""
        free, size = self._limit - self._size, 0
        for item in items:  # nearly always columns of numbers, and there is room: keep that path short
            if type(item) is not Column or type(item.value) not in PLAIN or type(item.parts) not in PLAIN:
                break
            size += RECORD if item.parts is None else RECORD + 8 * len(item.parts.names)
        else:
            if size <= free:
                return items, size
        taken: list[Given] = []
        size = 0
        for item in items:
            cost, detail = _cost(item)
            if size + cost > (free - self._limit // 2 if detail else free):
                self.drop(dropped((item,)))
                continue
            if detail and not isinstance(item, Columns) and isinstance(item.value, np.ndarray):
                item = replace(item, value=item.value.copy())  # a view, maybe, of what training changes next
            taken.append(item)
            size += cost
        return tuple(taken), size

    def drop(self, lost: Dropped | None) -> None:
        """Count records that will not be written."""
        with self._lock:
            if lost is not None:
                self._dropped = lost if self._dropped is None else self._dropped + lost

    def take_dropped(self) -> Dropped | None:
        """Return what was dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, None
            return dropped

    def wait(self, seconds: float) -> tuple[list[Item], bool]:
        """Sleep until someone is in a hurry or the time is over; return what waits, and if it is the last.

        The items stay until `remove` is called, so a failed attempt loses nothing.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._hurry, seconds)
            self._hurry = False
            return list(self._items), self._closed

    def remove(self, count: int, records: int) -> None:
        """Take the oldest items out for good: written, or given up; ``records`` of them are on disk."""
        with self._lock:
            for _ in range(count):
                self._items.popleft()
                self._size -= self._sizes.popleft()
            self._done += count
            self.acknowledged += records
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more, and ask for the rest to be written now."""
        with self._lock:
            self._closed = self._hurry = True
            self._changed.notify_all()

    def flush(self, timeout: float | None) -> bool:
        """Ask for everything so far to be written; wait for it and return whether it was."""
        with self._lock:
            goal = self._given
            if self._done >= goal:
                return True
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= goal, timeout)


def count(items: Iterable[object]) -> int:
    """Return how many records there are, those in columns counted one by one."""
    return sum(len(item) if isinstance(item, Column | Columns) else 1 for item in items)


def dropped(items: tuple[object, ...]) -> Dropped | None:
    """Return what is lost with these records and columns."""
    steps = [step for item in items for step in _steps(item) if isinstance(step, int)]
    return Dropped(count(items), min(steps, default=0), max(steps, default=0)) if items else None


def _steps(item: object) -> Iterable[object]:
    return item.steps if isinstance(item, Columns) else (getattr(item, "step", None),)


def _cost(item: Given) -> tuple[int, bool]:
    """Return the bytes an item takes, and whether arrays or histograms are among them."""
    cost, detail = RECORD, False
    if type(item) is Columns:
        return _cost_of_columns(item)
    if type(item) is Column and (parts := item.parts) is not None:
        if isinstance(parts, Histograms):
            cost, detail = cost + int(parts.counts.nbytes), True
        else:
            cost += 8 * len(parts.names)
    value = getattr(item, "value", None)
    if type(value) is float or value is None:
        return cost, detail
    if isinstance(value, Histogram):
        return cost + int(value.counts.nbytes), True
    return (
        (cost + int(value.nbytes), True) if isinstance(value, np.ndarray) and value.ndim else (cost, detail)
    )


def _cost_of_columns(columns: Columns) -> tuple[int, bool]:
    if type(columns.values[0]) is float and not isinstance(columns.parts, list):
        return RECORD + 8 * len(columns), False
    counts = [
        h.counts for h in (*columns.values, *(columns.parts or ())) if isinstance(h, Histogram | Histograms)
    ]
    return RECORD * (1 + len(counts)) + sum(int(c.nbytes) for c in counts), True
