"""The writing side of the tables: records, events and meta data become rows, in the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from cockpit.store.chunks import Chunks
from cockpit.store.codec import pack_array, pack_edges, pack_floats, pack_status
from cockpit.store.record import Event, Histogram, Record

HOT_ROWS = 512
HOT_BYTES = 64 * 2**20
"""Step rows are moved into chunks when there are this many, or when they are this large."""


class Tables:
    """Puts values into an open file; remembers the numbers of series, layouts and edges.

    After a transaction that was rolled back the memory is wrong: make a new one.
    """

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._chunks = Chunks(db)
        self._series: dict[tuple[str, str], int] = {}
        self._arrays: set[int] = set()
        for number, name, scope, kind in db.execute("SELECT id, name, scope, kind FROM series"):
            self._series[name, scope] = number
            if kind == "array":
                self._arrays.add(number)
        self._layouts = {
            tuple(json.loads(text)): number for number, text in db.execute("SELECT id, series FROM layout")
        }
        self._edges: dict[bytes, int] = {}
        rows, size = db.execute("SELECT count(*), total(length(data)) FROM step_row").fetchone()
        self._rows, self._size = int(rows), int(size)

    def put(self, records: Iterable[Record]) -> list[str]:
        """Write records; return what was wrong with those that cannot be stored."""
        rows: dict[int, dict[int, float]] = {}
        status: dict[int, dict[int, str]] = {}
        refused = []
        known, arrays = self._series, self._arrays
        for record in records:
            try:
                # nearly every record is a number that is ok, of a series that is known: keep that path short
                series = known.get((record.name, record.scope))
                value = record.value
                usual = type(value) is float and record.status == "ok" and series not in arrays
                if usual and series and not status and record.step in rows:
                    rows[record.step][series] = cast(float, value)
                else:
                    self._put_one(record, rows, status)
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                refused.append(f"{record!r:.200}: {error}")
        for step, values in rows.items():
            self._put_row(step, values, status.get(step, {}))
        return refused

    def put_event(self, event: Event, data: str) -> None:
        """Write an event whose data are already JSON."""
        self._db.execute(
            "INSERT INTO event (step, time, kind, text, scope, data) VALUES (?, ?, ?, ?, ?, ?)",
            (event.step, time.time(), event.kind, event.text, event.scope, data),
        )

    def put_meta(self, values: Mapping[str, str]) -> None:
        """Set keys to values that are already JSON."""
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def rewind(self, step: int) -> None:
        """Delete everything at or beyond a step (earlier rewinds stay on record), and say so."""
        self._chunks.cut(step)
        self._db.execute("DELETE FROM array WHERE step >= ?", (step,))
        self._db.execute("DELETE FROM event WHERE step >= ? AND kind != 'rewind'", (step,))
        self.put_event(
            Event(step, "rewind", f"continued from step {step}; what lay beyond it is deleted"), "{}"
        )

    def touch(self, changed: bool) -> None:
        """Note that the writer is alive, and count the transaction if it changed anything."""
        self._db.execute("UPDATE state SET sequence = sequence + ?, heartbeat = ?", (changed, time.time()))

    @property
    def wants_compaction(self) -> bool:
        """Whether enough step rows have come together."""
        return self._rows >= HOT_ROWS or self._size >= HOT_BYTES

    def compact(self) -> None:
        """Move the step rows into chunks; a reader sees no difference."""
        if self._rows:
            self._chunks.compact()
        self._rows = self._size = 0

    def _put_one(
        self, record: Record, rows: dict[int, dict[int, float]], status: dict[int, dict[int, str]]
    ) -> None:
        step, value = int(record.step), record.value
        if not -(2**63) <= step < 2**63:
            raise OverflowError("the step does not fit into 64 bits")
        series = self._series.get((record.name, record.scope)) or self._new_series(record.name, record.scope)
        if isinstance(value, Histogram) or (isinstance(value, np.ndarray) and value.ndim):
            self._put_array(series, step, value, record.status)
        elif series in self._arrays:
            self._put_array(series, step, np.float64(value), record.status)
        else:
            rows.setdefault(step, {})[series] = float(value)
            if record.status != "ok":
                status.setdefault(step, {})[series] = str(record.status)
            elif status:
                status.get(step, {}).pop(series, None)

    def _put_row(self, step: int, values: dict[int, float], status: dict[int, str]) -> None:
        layout = tuple(sorted(values))  # so that the order in which quantities come makes no new layout
        number = self._layouts.get(layout)
        if number is None:
            number = self._number("layout", "series", json.dumps(layout, separators=(",", ":")))
            self._layouts[layout] = number
        data = pack_floats([values[series] for series in layout])
        where = {series: position for position, series in enumerate(layout)} if status else {}
        words = pack_status((where[series], text) for series, text in status.items())
        self._db.execute(
            "INSERT INTO step_row (step, layout, data, status) VALUES (?, ?, ?, ?)",
            (step, number, data, words),
        )
        self._rows += 1
        self._size += len(data)

    def _put_array(
        self, series: int, step: int, value: Histogram | np.ndarray | np.float64, status: str
    ) -> None:
        edges: list[int | None] = [None, None]
        outside: tuple[int | None, ...] = (None, None, None, None)
        if isinstance(value, Histogram):
            packed = pack_array(np.asarray(value.counts))
            for axis, data in enumerate(pack_edges(value)):
                edges[axis] = self._edges_number(data)
            outside = (int(value.underflow), int(value.overflow), int(value.nan), int(value.inf))
            kind = "histogram"
        else:
            packed = pack_array(np.asarray(value))
            kind = "array" if isinstance(value, np.ndarray) else "number"
        if series not in self._arrays:
            self._db.execute("UPDATE series SET kind = 'array' WHERE id = ?", (series,))
            self._arrays.add(series)
        self._db.execute(
            "INSERT INTO array (series, step, kind, dtype, shape, data, edges, edges_2, "
            "underflow, overflow, nan, inf, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (series, step, kind, *packed, *edges, *outside, _text(status)),
        )

    def _new_series(self, name: str, scope: str) -> int:
        self._db.execute(
            "INSERT OR IGNORE INTO series (name, scope, kind) VALUES (?, ?, 'number')",
            (_text(name), _text(scope)),
        )
        row = self._db.execute("SELECT id FROM series WHERE name = ? AND scope = ?", (name, scope)).fetchone()
        self._series[name, scope] = number = int(row[0])
        return number

    def _edges_number(self, data: bytes) -> int:
        if data not in self._edges:
            if len(self._edges) > 100:  # edges that adapt at every step are seldom met again
                self._edges.clear()
            self._edges[data] = self._number("edges", "data", data)
        return self._edges[data]

    def _number(self, table: str, column: str, value: str | bytes) -> int:
        """Return the id of a row of unique values, adding it where it is new."""
        self._db.execute(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", (value,))
        return int(self._db.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,)).fetchone()[0])


def _text(value: str) -> str:
    """Return text that SQLite can hold; refuse what is not text at all."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    value.encode()
    return value
