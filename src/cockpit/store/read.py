"""Reading the numbers of one series from the tables they lie in, inside a read transaction of the caller."""

from __future__ import annotations

import json
import sqlite3

import numpy as np

from cockpit.store.chunks import COLUMNS, unpack_into
from cockpit.store.codec import unpack_floats
from cockpit.store.points import Points
from cockpit.store.status import Status, unpack_status


def read_numbers(db: sqlite3.Connection, series: int, since: int) -> Points:
    """Return the numbers of a series from a step on: its chunks, then its part of the step rows.

    Each chunk is decoded into its place in the result: memory that is touched for the first time costs more than
    anything else here.
    """
    rows = _read_rows(db, series, since).sorted()
    where = "FROM chunk WHERE series = ? AND last_step >= ?"
    size = db.execute(f"SELECT total(count) {where}", (series, since)).fetchone()[0]
    end = int(size)
    steps, values = np.empty(end + len(rows.steps), np.int64), np.empty(end + len(rows.steps))
    steps[end:], values[end:] = rows.steps, rows.values
    status, start, ordered = [], 0, True
    for row in db.execute(f"SELECT {COLUMNS} {where} ORDER BY id", (series, since)):
        places = slice(start, start + row[3])
        status.append((unpack_into(row, steps[places], values[places]), row[3]))
        ordered = ordered and (not start or bool(steps[start - 1] < steps[start]))
        start += row[3]
    ordered = ordered and (not 0 < end < len(steps) or bool(steps[end - 1] < steps[end]))
    points = Points(steps, values, Status.join([*status, (rows.status, len(rows.steps))]))
    return (points if ordered else points.sorted()).since(since)


def _read_rows(db: sqlite3.Connection, series: int, since: int) -> Points:
    """Return the points that are not in chunks yet."""
    layouts = db.execute("SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)").fetchall()
    places = {layout: ids.index(series) for layout, text in layouts if series in (ids := json.loads(text))}
    # only the eight bytes that matter leave SQLite, not the whole row
    rows = db.execute(
        "SELECT step, substr(data, 8 * place.value + 1, 8), status, place.value, length(data) / 8 FROM step_row "
        "JOIN json_each(?) AS place ON place.key = step_row.layout WHERE step >= ? ORDER BY step_row.id",
        (json.dumps(places), since),
    ).fetchall()
    texts = {row[2:]: _word(*row[2:]) for row in rows}  # few different ones
    status = Status.of(len(rows), {k: word for k, row in enumerate(rows) if (word := texts[row[2:]]) != "ok"})
    values = unpack_floats(b"".join(row[1] for row in rows))
    return Points(np.array([row[0] for row in rows], dtype=np.int64), values, status)


def _word(text: str | None, place: int, width: int) -> str:
    """Return the status at one place of a row."""
    return unpack_status(text, width).at(place)
