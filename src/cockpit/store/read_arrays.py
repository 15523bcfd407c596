"""Reading the arrays and histograms of one series from the tables they lie in, inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, NamedTuple

import numpy as np

from cockpit.store.codec import Floats, Ints, unpack_array, unpack_floats, unpack_ints
from cockpit.store.points import Points
from cockpit.store.record import Edges, Histogram, Value
from cockpit.store.status import unpack_status


def read_arrays(
    db: sqlite3.Connection, series: int, since: int, numbers: Points, points: int | None
) -> tuple[Ints, list[Value], list[str]]:
    """Return (steps, values, statuses) of a series of arrays; its numbers are gaps before the first array."""
    sources = _sources(db, series)
    found = {step for source in sources for step in _steps(db, source, since, points)}
    steps = np.union1d(np.array(sorted(found), dtype=np.int64), numbers.steps)
    if points is not None and len(steps) > points:
        steps = steps[np.linspace(0, len(steps) - 1, points).round().astype(np.int64)]
    gaps = {int(step): k for k, step in enumerate(numbers.steps)}
    edges = _KnownEdges(db)
    values: list[Value] = []
    status: list[str] = []
    for step in steps.tolist():
        newest = max((row for source in sources if (row := _newest(db, source, step))), default=None)
        if newest is None:
            values.append(float(numbers.values[gaps[step]]))
            status.append(numbers.status.at(gaps[step]))
            continue
        _, source, row = newest
        value, word = _of_array(row, edges) if source.place is None else _of_block(row, source.place, edges)
        values.append(value)
        status.append(word)
    return steps, values, status


class _Source(NamedTuple):
    """Where points of a series lie: rows of a table with a number, and the place inside each row of a block."""

    table: str
    column: str
    number: int
    place: int | None

    @property
    def where(self) -> str:
        return f"FROM {self.table} WHERE {self.column} = ?"


def _sources(db: sqlite3.Connection, series: int) -> list[_Source]:
    layouts = db.execute(
        "SELECT id, series FROM layout WHERE EXISTS (SELECT 1 FROM block WHERE block.layout = layout.id)"
    )
    blocks = [
        _Source("block", "layout", layout, ids.index(series))
        for layout, text in layouts
        if series in (ids := json.loads(text))
    ]
    return [_Source("array", "series", series, None), *blocks]


def _steps(db: sqlite3.Connection, source: _Source, since: int, points: int | None) -> list[int]:
    """Return the steps of all rows, or of evenly spaced ones where there are more than ``points``."""
    where = f"{source.where} AND step >= ?"
    limit = -1 if points is None else points + 1
    found = db.execute(
        f"SELECT DISTINCT step {where} ORDER BY step LIMIT ?", (source.number, since, limit)
    ).fetchall()
    if points is None or len(found) <= points:
        return [step for (step,) in found]
    first, last = db.execute(f"SELECT min(step), max(step) {where}", (source.number, since)).fetchone()
    wanted = np.linspace(first, last, points).astype(np.int64).tolist()
    nearest = f"SELECT max(step) {where} AND step <= ?"
    return sorted({db.execute(nearest, (source.number, since, step)).fetchone()[0] for step in wanted})


_COLUMNS = {
    "array": "kind, dtype, shape, data, edges, edges_2, underflow, overflow, nan, inf, status",
    "block": "dtype, shape, data, edges, edges_2, outside, status",
}


def _newest(
    db: sqlite3.Connection, source: _Source, step: int
) -> tuple[int, _Source, tuple[Any, ...]] | None:
    """Return the row written last for a step, with its id and where it is from."""
    row = db.execute(
        f"SELECT id, {_COLUMNS[source.table]} {source.where} AND step = ? ORDER BY id DESC LIMIT 1",
        (source.number, step),
    ).fetchone()
    return None if row is None else (row[0], source, row[1:])


class _KnownEdges:
    """Bin edges by their number, each decoded once and shared by the histograms that use it."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._known: dict[int, Floats] = {}

    def both(self, first: int, second: int | None) -> Edges:
        """Return the edges of one axis, or of two."""
        return self._one(first) if second is None else (self._one(first), self._one(second))

    def _one(self, number: int) -> Floats:
        if number not in self._known:
            data = self._db.execute("SELECT data FROM edges WHERE id = ?", (number,)).fetchone()[0]
            self._known[number] = unpack_floats(data)
        return self._known[number]


def _of_array(row: tuple[Any, ...], edges: _KnownEdges) -> tuple[Value, str]:
    """Return the value and the status of a row of the table ``array``."""
    kind, dtype, shape, data, first, second, *outside, status = row
    values = unpack_array(dtype, shape, data)
    if kind == "number":
        return float(values), status
    if kind == "array":
        return values, status
    counts = values.astype(np.int64) if values.dtype.kind in "iu" else values
    return Histogram(counts, edges.both(first, second), *outside), status


def _of_block(row: tuple[Any, ...], place: int, edges: _KnownEdges) -> tuple[Value, str]:
    """Return the histogram at a place of a row of the table ``block``, and its status."""
    dtype, shape, data, first, second, outside, text = row
    counts = unpack_array(dtype, shape, data)
    beyond = unpack_ints(outside).reshape(-1, 4)[place].tolist()
    value = Histogram(counts[place].astype(np.int64), edges.both(first, second), *beyond)
    return value, unpack_status(text, len(counts)).at(place)
