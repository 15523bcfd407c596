"""The writing side of the tables ``array``, ``block`` and ``edges``: everything that is not a number.

Rows of ``array`` and ``block`` share one sequence of ids, so that of two with the same series and step the later one
can be told.
"""

from __future__ import annotations

import sqlite3

import numpy as np

from cockpit.store.codec import narrow, pack_array, pack_edges, pack_ints
from cockpit.store.record import Edges, Histogram, Histograms

USUAL = 16
"""How many edges are known by identity."""


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
        edges: tuple[int | None, int | None] = (None, None)
        outside: tuple[int | None, ...] = (None, None, None, None)
        if isinstance(value, Histogram):
            packed = pack_array(narrow(np.asarray(value.counts)))
            edges = self._edges_numbers(value.edges)
            outside = (int(value.underflow), int(value.overflow), int(value.nan), int(value.inf))
            kind = "histogram"
        else:
            packed = pack_array(np.asarray(value))
            kind = "array" if isinstance(value, np.ndarray) else "number"
        self._db.execute(
            "INSERT INTO array (id, series, step, kind, dtype, shape, data, edges, edges_2, "
            "underflow, overflow, nan, inf, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._next(), series, step, kind, *packed, *edges, *outside, status),
        )

    def put_block(self, layout: int, step: int, value: Histograms, status: str | None) -> None:
        """Write the histograms of all series of a layout."""
        packed = pack_array(narrow(value.counts))
        edges = self._edges_numbers(value.edges)
        self._db.execute(
            "INSERT INTO block (id, layout, step, dtype, shape, data, edges, edges_2, outside, status) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._next(), layout, step, *packed, *edges, pack_ints(value.outside), status),
        )

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
