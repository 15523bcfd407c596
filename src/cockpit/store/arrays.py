"""The writing side of the tables ``array``, ``block`` and ``edges``: everything that is not a number.

Rows of ``array`` and ``block`` share one sequence of ids, so that of two with the same series and step the later one
can be told.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np

from cockpit.store.codec import narrow, pack_array, pack_arrays, pack_edges, pack_ints
from cockpit.store.record import Edges, Histogram, Histograms

USUAL = 16
"""How many edges are known by identity."""


ARRAY = (
    "INSERT INTO array (id, series, step, kind, dtype, shape, data, edges, edges_2, "
    "underflow, overflow, nan, inf, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
BLOCK = (
    "INSERT INTO block (id, layout, step, dtype, shape, data, edges, edges_2, outside, status) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Arrays:
    """Puts arrays and histograms into an open file; remembers the numbers of edges."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._edges: dict[bytes, int] = {}
        self._usual: dict[int, tuple[Edges, tuple[int, int | None]]] = {}
        """By identity, edges that came lately, which are kept so that no others get it; most come at every step."""
        newest = (db.execute(f"SELECT max(id) FROM {table}").fetchone()[0] for table in ("array", "block"))
        self._last = max(number or 0 for number in newest)

    def put(self, series: int, step: int, value: Histogram | np.ndarray | np.float64, status: str) -> None:
        """Write one value of one series."""
        if isinstance(value, Histogram):
            self.put_histograms(series, (step,), (value,), (status,))
            return
        packed = pack_array(np.asarray(value))
        kind = "array" if isinstance(value, np.ndarray) else "number"
        self._db.execute(ARRAY, (self._next(), series, step, kind, *packed, *[None] * 6, status))

    def put_histograms(
        self,
        series: int,
        steps: Sequence[int],
        values: Sequence[Histogram],
        statuses: Sequence[str],
        blocks: Sequence[Sequence[object]] = (),
    ) -> None:
        """Write histograms of one series, of one shape, and ``blocks`` (see there) of the same steps."""
        packed = pack_arrays(narrow(np.stack([np.asarray(value.counts) for value in values])))
        rows = [
            (
                *(series, step, "histogram", *each, *self._edges_numbers(value.edges)),
                *(int(value.underflow), int(value.overflow), int(value.nan), int(value.inf), status),
            )
            for step, value, each, status in zip(steps, values, packed, statuses, strict=True)
        ]
        self._db.executemany(ARRAY, [(self._next(), *row) for row in rows])
        self.put_blocks(blocks)

    def put_blocks(self, rows: Sequence[Sequence[object]]) -> None:
        """Write what `blocks` has prepared."""
        self._db.executemany(BLOCK, [(self._next(), *row) for row in rows])

    def blocks(
        self, layout: int, steps: Sequence[int], values: Sequence[Histograms], status: str | None
    ) -> Sequence[Sequence[object]]:
        """Prepare the histograms of all series of a layout at some steps; if it raises, nothing is written."""
        packed = pack_arrays(narrow(np.stack([value.counts for value in values])))
        return [
            (layout, step, *each, *self._edges_numbers(value.edges), pack_ints(value.outside), status)
            for step, value, each in zip(steps, values, packed, strict=True)
        ]

    def cut(self, step: int) -> None:
        """Delete everything at or beyond a step."""
        self._db.execute("DELETE FROM array WHERE step >= ?", (step,))
        self._db.execute("DELETE FROM block WHERE step >= ?", (step,))

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _edges_numbers(self, edges: Edges) -> tuple[int, int | None]:
        known = self._usual.get(id(edges))
        if known is None:
            first, *rest = (self._edges_number(data) for data in pack_edges(edges))
            if len(self._usual) >= USUAL:
                self._usual.clear()
            known = self._usual[id(edges)] = edges, (first, rest[0] if rest else None)
        return known[1]

    def _edges_number(self, data: bytes) -> int:
        if data not in self._edges:
            if len(self._edges) > 100:  # edges that adapt at every step are seldom met again
                self._edges.clear()
            self._db.execute("INSERT OR IGNORE INTO edges (data) VALUES (?)", (data,))
            found = self._db.execute("SELECT id FROM edges WHERE data = ?", (data,)).fetchone()
            self._edges[data] = int(found[0])
        return self._edges[data]
