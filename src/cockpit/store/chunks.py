"""Chunks: many points of one series in one row, so that a million points are read in a few hundred rows.

Compaction makes a chunk of about 512 points of every dense series, a smaller one of every other; sixteen
chunks that are not full are merged into one. All of it happens inside transactions of the caller, and a
reader sees the same points before and after.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cockpit.store.codec import Floats, Ints, pack_floats, pack_steps, unpack_steps
from cockpit.store.points import Points
from cockpit.store.status import Status, unpack_status

FULL = 4096
"""A chunk with so many points is left alone."""

BAND = 32
"""So many step rows are turned into columns at once."""

SMALL_CHUNKS = 16
"""So many chunks at the end of a series that are not full are merged into one."""


class Chunks:
    """The writing side of the table ``chunk``; counts the chunks that wait to be merged."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._small = self._count()

    def _count(self) -> Counter[int]:
        rows = self._db.execute("SELECT series, count(*) FROM chunk WHERE count < ? GROUP BY series", (FULL,))
        return Counter(dict(rows.fetchall()))

    def compact(self) -> None:
        """Move all step rows into chunks, and merge some small ones."""
        text = "SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)"
        groups = [
            _Group(self._db, layout, json.loads(ids)) for layout, ids in self._db.execute(text).fetchall()
        ]
        uses = Counter(series for group in groups for series in group.series)
        rows = [row for group in groups for row in group.plain_rows(uses)]
        done = {row[0] for row in rows}
        for series in uses.keys() - done:
            parts = [group.points(series) for group in groups if series in group.columns]
            order = np.argsort(np.concatenate([group.order for group in groups if series in group.columns]))
            rows.append((series, *_pack(Points.join(parts).take(order).sorted())))
        self._db.executemany(f"INSERT INTO chunk (series, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.execute("DELETE FROM step_row")
        self._small.update(row[0] for row in rows if row[4] < FULL)
        due = [series for series, count in self._small.most_common() if count >= SMALL_CHUNKS]
        for series in due[: max(50, len(self._small) // 8)]:  # not all at once: the pause stays short
            self._merge(series)

    def cut(self, step: int) -> None:
        """Delete every number at or beyond a step."""
        self._db.execute("DELETE FROM step_row WHERE step >= ?", (step,))
        self._db.execute("DELETE FROM chunk WHERE first_step >= ?", (step,))
        cut = self._db.execute(f"SELECT id, {COLUMNS} FROM chunk WHERE last_step >= ?", (step,)).fetchall()
        for number, *row in cut:
            points = unpack(row)
            self._replace(number, points.take(np.flatnonzero(points.steps < step)))
        self._small = self._count()

    def _merge(self, series: int) -> None:
        """Make one chunk of those behind the last full one; it takes the place of the newest."""
        rows = self._db.execute(
            f"SELECT id, {COLUMNS} FROM chunk WHERE series = ? AND id > "
            "coalesce((SELECT max(id) FROM chunk WHERE series = ? AND count >= ?), 0) ORDER BY id",
            (series, series, FULL),
        ).fetchall()
        if len(rows) > 1:
            *older, newest_id = [row[0] for row in rows]
            points = Points.join([unpack(row[1:]) for row in rows]).sorted()
            self._db.executemany("DELETE FROM chunk WHERE id = ?", [(number,) for number in older])
            self._replace(newest_id, points)
        self._small[series] = 1

    def _replace(self, number: int, points: Points) -> None:
        self._db.execute(
            "UPDATE chunk SET steps = ?, first_step = ?, last_step = ?, count = ?, data = ?, status = ? "
            "WHERE id = ?",
            (*_pack(points), number),
        )


Row = tuple[bytes | None, int, int, int, bytes, str | None]
COLUMNS = "steps, first_step, last_step, count, data, status"
"""The columns of a chunk that `unpack` reads, in order."""


def unpack(row: Sequence[Any]) -> Points:
    """Return the points of a row of ``COLUMNS``."""
    steps, values = np.empty(row[3], np.int64), np.empty(row[3])
    return Points(steps, values, unpack_into(row, steps, values))


def unpack_into(row: Sequence[Any], into_steps: Ints, into_values: Floats) -> Status:
    """Put the points of a row of ``COLUMNS`` into arrays and return their statuses."""
    steps, first, last, count, data, status = row
    into_steps[:] = unpack_steps(steps, first, last, count)
    into_values[:] = np.frombuffer(data, dtype=">f8")
    return unpack_status(status, count)


def _pack(points: Points) -> Row:
    """Return the values of ``COLUMNS``."""
    steps = points.steps
    first, last = int(steps[0]), int(steps[-1])
    return pack_steps(steps), first, last, len(steps), pack_floats(points.values), points.status.packed()


class _Group:
    """The step rows of one layout, turned into columns."""

    def __init__(self, db: sqlite3.Connection, layout: int, series: list[int]):
        found = db.execute(
            "SELECT id, step, data, status FROM step_row WHERE layout = ? ORDER BY id", (layout,)
        ).fetchall()
        order, steps, data, status = zip(*found, strict=True)
        self.series = series
        self.columns = {number: position for position, number in enumerate(series)}
        self.order = np.array(order, dtype=np.int64)
        self._steps = np.array(steps, dtype=np.int64)
        self._table = np.empty((len(series), len(data)), dtype=">f8")
        for k in range(0, len(data), BAND):  # in pieces: NumPy keeps the training thread waiting meanwhile
            band = np.frombuffer(b"".join(data[k : k + BAND]), ">f8")
            self._table[:, k : k + BAND] = band.reshape(-1, len(series)).T
        self._codes, self._words = _transposed(status, len(series))

    def points(self, series: int) -> Points:
        """Return the points of one series, in the order of writing."""
        position = self.columns[series]
        return Points(self._steps, self._table[position].astype(np.float64), self._status(position))

    def plain_rows(self, uses: Counter[int]) -> Iterator[tuple[int, *Row]]:
        """Yield (series, chunk) of the series that need no thought: in this layout only, and in order."""
        if not bool((np.diff(self._steps) > 0).all()):
            return
        steps, first, last = pack_steps(self._steps), int(self._steps[0]), int(self._steps[-1])
        texts: dict[bytes, str | None] = {}  # most series have the same statuses: none, or one at every step
        for position, series in enumerate(self.series):
            if uses[series] == 1:
                text = None
                if self._codes is not None:
                    key = self._codes[position].tobytes()
                    text = (
                        texts[key] if key in texts else texts.setdefault(key, self._status(position).packed())
                    )
                yield series, steps, first, last, len(self._steps), self._table[position].tobytes(), text

    def _status(self, position: int) -> Status:
        return Status() if self._codes is None else Status(self._codes[position], self._words)


def _transposed(
    rows: Sequence[str | None], width: int
) -> tuple[npt.NDArray[np.int32] | None, tuple[str, ...]]:
    """Return codes [width, rows] of the statuses of rows, and their words."""
    texts = {text: k for k, text in enumerate(dict.fromkeys(rows))}
    joined = Status.join([(unpack_status(text, width), width) for text in texts])
    if joined.codes is None:
        return None, ()
    codes = joined.codes.reshape(len(texts), width)[[texts[text] for text in rows]]
    return np.ascontiguousarray(codes.T), joined.words
