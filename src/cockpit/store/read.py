"""Reading the numbers of series from the tables they lie in, inside a read transaction of the caller."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cockpit.store.chunks import COLUMNS, unpack_into
from cockpit.store.codec import Floats, Ints
from cockpit.store.points import Points
from cockpit.store.status import Codes, Status, unpack_status


def read_numbers(db: sqlite3.Connection, series: Sequence[int], since: int) -> list[Points]:
    """Return the numbers of each series from a step on: its chunks, then its part of the step rows."""
    layouts = _layouts(db, series, since)
    return [_read_one(db, one, since, _newest(layouts, one)) for one in series]


def _read_one(db: sqlite3.Connection, series: int, since: int, rows: Points) -> Points:
    """Return the numbers of a series, given those that are not in chunks yet.

    Each chunk is decoded into its place in the result: memory that is touched for the first time costs more than
    anything else here.
    """
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


class _Layout(NamedTuple):
    """The step rows of one layout: where series are in them, their order of writing, steps and values [rows, places].

    ``codes`` [rows, places] stand for ``words``, as in `Status`; None where all are ok.
    """

    places: dict[int, int]
    order: Ints
    steps: Ints
    values: Floats
    codes: Codes | None
    words: tuple[str, ...]


def _layouts(db: sqlite3.Connection, series: Sequence[int], since: int) -> list[_Layout]:
    """Return the step rows that hold some of the series."""
    wanted, found = set(series), []
    layouts = db.execute("SELECT id, series FROM layout WHERE id IN (SELECT layout FROM step_row)").fetchall()
    for layout, text in layouts:
        ids = json.loads(text)
        places = {one: place for place, one in enumerate(ids) if one in wanted}
        if not places:
            continue
        first, last = min(places.values()), max(places.values())
        # only the bytes that matter leave SQLite, not the whole row
        rows = db.execute(
            "SELECT id, step, substr(data, ?, ?), status FROM step_row WHERE layout = ? AND step >= ? ORDER BY id",
            (8 * first + 1, 8 * (last - first + 1), layout, since),
        ).fetchall()
        if rows:
            ids_of_rows, steps, data, texts = zip(*rows, strict=True)
            values = np.frombuffer(b"".join(data), ">f8").reshape(len(rows), -1).astype(np.float64)
            codes, words = _codes(texts, len(ids), slice(first, last + 1))
            shifted = {one: place - first for one, place in places.items()}
            found.append(_Layout(shifted, np.array(ids_of_rows), np.array(steps), values, codes, words))
    return found


def _codes(texts: Sequence[str | None], width: int, kept: slice) -> tuple[Codes | None, tuple[str, ...]]:
    """Return the statuses of rows as codes [rows, places], and their words; few rows have one of their own."""
    numbers = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    count = len(range(width)[kept])
    joined = Status.join([(unpack_status(text, width).take(kept), count) for text in numbers])
    if joined.codes is None or not joined.codes.any():
        return None, ()
    return joined.codes.reshape(-1, count)[[numbers[text] for text in texts]], joined.words


def _newest(layouts: list[_Layout], series: int) -> Points:
    """Return the points of a series that are not in chunks yet."""
    there = [(layout, layout.places[series]) for layout in layouts if series in layout.places]
    parts = [
        Points(
            layout.steps,
            layout.values[:, place],
            Status() if layout.codes is None else Status(layout.codes[:, place], layout.words),
        )
        for layout, place in there
    ]
    if not parts:
        return Points(np.empty(0, np.int64), np.empty(0), Status())
    if len(parts) > 1:
        order = np.argsort(np.concatenate([layout.order for layout, _ in there]))
        return Points.join(parts).take(order).sorted()
    return parts[0].sorted()
