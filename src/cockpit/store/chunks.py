"""Chunks: about 512 points of one series in one row, so that a million points are read in 2000 rows.

`compact` moves the step rows there, `cut` removes everything from a step on. Both run inside a transaction of
their caller, so a reader sees the same points before and after.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cockpit.store.codec import (
    Floats,
    Ints,
    pack_floats,
    pack_status,
    pack_steps,
    unpack_floats,
    unpack_status,
    unpack_steps,
)

POINTS = 512
"""A chunk with fewer points is filled up by the next compaction; so chunks have up to about twice as many."""


class Points(NamedTuple):
    """Points of one series: steps, values, and the statuses that are not ok by position."""

    steps: Ints
    values: Floats
    status: Mapping[int, str]

    @staticmethod
    def join(parts: list[Points]) -> Points:
        """Put parts one after another, in the order given."""
        if len(parts) == 1:
            return parts[0]
        offsets = np.cumsum([0] + [len(part.steps) for part in parts])
        status = {
            int(k + offset): text
            for part, offset in zip(parts, offsets, strict=False)
            for k, text in part.status.items()
        }
        return Points(
            np.concatenate([part.steps for part in parts]),
            np.concatenate([part.values for part in parts]),
            status,
        )

    def take(self, kept: Ints) -> Points:
        """Return the points at the positions given."""
        if not self.status:
            return Points(self.steps[kept], self.values[kept], {})
        status = {new: self.status[old] for new, old in enumerate(kept.tolist()) if old in self.status}
        return Points(self.steps[kept], self.values[kept], status)

    def sorted(self) -> Points:
        """Return the points by ascending step; of several with one step, the last."""
        if len(self.steps) < 2 or bool((np.diff(self.steps) > 0).all()):
            return self
        return self.take(newest(self.steps))


def newest(steps: Ints) -> Ints:
    """Return the positions that sort the steps, keeping the last of equal ones."""
    order: Ints = np.argsort(steps, kind="stable")
    last = np.append(np.diff(steps[order]) != 0, True)
    return np.compress(last, order)


def compact(db: sqlite3.Connection) -> None:
    """Move all step rows into chunks."""
    parts: dict[int, list[tuple[Ints, Points]]] = defaultdict(list)
    layouts = db.execute("SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)").fetchall()
    for layout, text in layouts:
        rows = db.execute(
            "SELECT id, step, data, status FROM step_row WHERE layout = ? ORDER BY id", (layout,)
        ).fetchall()
        series = json.loads(text)
        steps = np.array([row[1] for row in rows], dtype=np.int64)
        table = unpack_floats(b"".join(row[2] for row in rows)).reshape(len(rows), len(series))
        status: dict[int, dict[int, str]] = defaultdict(dict)
        for k, row in enumerate(rows):
            for position, word in unpack_status(row[3]).items():
                status[position][k] = word
        order = np.array([row[0] for row in rows], dtype=np.int64)
        for position, column in enumerate(np.ascontiguousarray(table.T)):
            points = Points(steps, column, status.get(position, {}))
            parts[series[position]].append((order, points))
    for number, pieces in parts.items():
        points = Points.join([points for _, points in pieces])
        if len(pieces) > 1:  # one series in several layouts: back into the order of writing
            points = points.take(np.argsort(np.concatenate([order for order, _ in pieces])))
        _append(db, number, points.sorted())
    db.execute("DELETE FROM step_row")


def cut(db: sqlite3.Connection, step: int) -> None:
    """Delete every number, array and event at or beyond a step (rewinds themselves stay on record)."""
    db.execute("DELETE FROM step_row WHERE step >= ?", (step,))
    db.execute("DELETE FROM chunk WHERE first_step >= ?", (step,))
    for number, *row in db.execute(
        f"SELECT id, {COLUMNS} FROM chunk WHERE last_step >= ?", (step,)
    ).fetchall():
        points = unpack(row)
        _replace(db, number, points.take(np.flatnonzero(points.steps < step)))
    db.execute("DELETE FROM array WHERE step >= ?", (step,))
    db.execute("DELETE FROM event WHERE step >= ? AND kind != 'rewind'", (step,))


COLUMNS = "steps, first_step, last_step, count, data, status"
"""The columns of a chunk that `unpack` reads, in order."""


def unpack(row: Sequence[Any]) -> Points:
    """Return the points of a row of ``COLUMNS``."""
    steps, first, last, count, data, status = row
    return Points(unpack_steps(steps, first, last, count), unpack_floats(data), unpack_status(status))


def _append(db: sqlite3.Connection, series: int, points: Points) -> None:
    """Add points to a series: to its last chunk while that is small, else as a new one."""
    last = db.execute(
        "SELECT id FROM (SELECT id, count FROM chunk WHERE series = ? ORDER BY id DESC LIMIT 1) "
        "WHERE count < ?",
        (series, POINTS),
    ).fetchone()
    if last is None:
        db.execute(
            f"INSERT INTO chunk (series, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", (series, *_pack(points))
        )
        return
    row = db.execute(f"SELECT {COLUMNS} FROM chunk WHERE id = ?", last).fetchone()
    _replace(db, last[0], Points.join([unpack(row), points]).sorted())


def _replace(db: sqlite3.Connection, number: int, points: Points) -> None:
    db.execute(
        "UPDATE chunk SET steps = ?, first_step = ?, last_step = ?, count = ?, data = ?, status = ? "
        "WHERE id = ?",
        (*_pack(points), number),
    )


def _pack(points: Points) -> tuple[bytes | None, int, int, int, bytes, str | None]:
    """Return the values of ``COLUMNS``."""
    steps = points.steps
    return (
        pack_steps(steps),
        int(steps[0]),
        int(steps[-1]),
        len(steps),
        pack_floats(points.values),
        pack_status(points.status.items()),
    )
