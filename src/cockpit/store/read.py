"""Reading one series from the tables it lies in, inside a read transaction of the caller."""

from __future__ import annotations

import json
import sqlite3
from itertools import pairwise
from typing import Any

import numpy as np

from cockpit.store.chunks import COLUMNS, unpack
from cockpit.store.codec import Floats, Ints, unpack_array, unpack_floats, unpack_status
from cockpit.store.points import Points
from cockpit.store.record import Histogram, Value


def read_numbers(db: sqlite3.Connection, series: int, since: int) -> Points:
    """Return the numbers of a series from a step on: its chunks, then its part of the step rows."""
    chunks = db.execute(
        f"SELECT {COLUMNS} FROM chunk WHERE series = ? AND last_step >= ? ORDER BY id", (series, since)
    )
    parts = [unpack(row) for row in chunks]
    parts.append(_read_rows(db, series, since).sorted())
    parts = [part for part in parts if len(part.steps)] or parts[-1:]
    points = Points.join(parts)
    if any(one.steps[-1] >= next_one.steps[0] for one, next_one in pairwise(parts)):
        points = points.sorted()  # each part is in order, but together they are not
    return points.since(since)


def _read_rows(db: sqlite3.Connection, series: int, since: int) -> Points:
    """Return the points that are not in chunks yet."""
    layouts = db.execute("SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)").fetchall()
    places = {layout: ids.index(series) for layout, text in layouts if series in (ids := json.loads(text))}
    # only the eight bytes that matter leave SQLite, not the whole row
    rows = db.execute(
        "SELECT step, substr(data, 8 * place.value + 1, 8), status, place.value FROM step_row "
        "JOIN json_each(?) AS place ON place.key = step_row.layout WHERE step >= ? ORDER BY step_row.id",
        (json.dumps(places), since),
    ).fetchall()
    status = {
        k: words[place]
        for k, (_, _, text, place) in enumerate(rows)
        if place in (words := unpack_status(text))
    }
    values = unpack_floats(b"".join(row[1] for row in rows))
    return Points(np.array([row[0] for row in rows], dtype=np.int64), values, status)


def read_arrays(
    db: sqlite3.Connection, series: int, since: int, numbers: Points, points: int | None
) -> tuple[Ints, list[Value], list[str]]:
    """Return (steps, values, statuses) of a series of arrays; its numbers are gaps before the first array."""
    steps = np.union1d(_array_steps(db, series, since, points), numbers.steps).astype(np.int64)
    if points is not None and len(steps) > points:
        steps = steps[np.linspace(0, len(steps) - 1, points).round().astype(np.int64)]
    gaps = {int(step): k for k, step in enumerate(numbers.steps)}
    edges = _Edges(db)
    values: list[Value] = []
    status = []
    for step in steps.tolist():
        row = db.execute(
            "SELECT kind, dtype, shape, data, edges, edges_2, underflow, overflow, nan, inf, status "
            "FROM array WHERE series = ? AND step = ? ORDER BY id DESC LIMIT 1",
            (series, step),
        ).fetchone()
        if row is None:
            values.append(float(numbers.values[gaps[step]]))
            status.append(numbers.status.get(gaps[step], "ok"))
        else:
            values.append(_value(row, edges))
            status.append(row[-1])
    return steps, values, status


def _array_steps(db: sqlite3.Connection, series: int, since: int, points: int | None) -> list[int]:
    """Return the steps of all arrays, or of evenly spaced ones where there are more than ``points``."""
    where = "FROM array WHERE series = ? AND step >= ?"
    limit = -1 if points is None else points + 1
    found = db.execute(
        f"SELECT DISTINCT step {where} ORDER BY step LIMIT ?", (series, since, limit)
    ).fetchall()
    if points is None or len(found) <= points:
        return [step for (step,) in found]
    first, last = db.execute(f"SELECT min(step), max(step) {where}", (series, since)).fetchone()
    wanted = np.linspace(first, last, points).astype(np.int64).tolist()
    nearest = f"SELECT max(step) {where} AND step <= ?"
    return sorted({db.execute(nearest, (series, since, step)).fetchone()[0] for step in wanted})


class _Edges:
    """Bin edges by their number, each decoded once and shared by the histograms that use it."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._known: dict[int, Floats] = {}

    def __getitem__(self, number: int) -> Floats:
        if number not in self._known:
            data = self._db.execute("SELECT data FROM edges WHERE id = ?", (number,)).fetchone()[0]
            self._known[number] = unpack_floats(data)
        return self._known[number]


def _value(row: tuple[Any, ...], edges: _Edges) -> Value:
    """Return the value of a row of the table ``array``."""
    kind, dtype, shape, data, first, second, *outside, _ = row
    values = unpack_array(dtype, shape, data)
    if kind == "number":
        return float(values)
    if kind == "array":
        return values
    return Histogram(values, edges[first] if second is None else (edges[first], edges[second]), *outside)
