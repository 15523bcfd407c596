"""From names to numbers: which series and layouts there are in a file, and under which ids."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from cockpit.store.record import Column
from cockpit.store.rows import Piece

KEPT = 4096
"""So many sets of parameters are remembered."""


class _Found(NamedTuple):
    """A piece, and what it was found by: kept with it, so that no other object gets the same identity."""

    piece: Piece
    names: tuple[str, ...]
    marks: Mapping[str, str] | None


class Index:
    """The numbers of series and layouts, added to the file when they are new; remembers which series hold arrays."""

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._series: dict[tuple[str, str], int] = {}
        self._of_arrays: set[int] = set()
        for number, name, scope, kind in db.execute("SELECT id, name, scope, kind FROM series"):
            self._series[name, scope] = number
            if kind == "array":
                self._of_arrays.add(number)
        self._layouts: dict[tuple[int, ...], int] = {
            tuple(json.loads(text)): number for number, text in db.execute("SELECT id, series FROM layout")
        }
        self._singles: dict[tuple[str, str], Piece] = {}
        self._pieces: dict[tuple[str, int, int, bool], _Found] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._marks: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def series(self, name: str, scope: str) -> int:
        """Return the number of a series."""
        known = self._series.get((name, scope))
        if known is not None:
            return known
        self._db.execute(
            "INSERT OR IGNORE INTO series (name, scope, kind) VALUES (?, ?, 'number')",
            (text(name), text(scope)),
        )
        row = self._db.execute("SELECT id FROM series WHERE name = ? AND scope = ?", (name, scope)).fetchone()
        self._series[name, scope] = number = int(row[0])
        return number

    def layout(self, series: tuple[int, ...]) -> int:
        """Return the number of a layout."""
        if series not in self._layouts:
            packed = json.dumps(series, separators=(",", ":"))
            self._db.execute("INSERT OR IGNORE INTO layout (series) VALUES (?)", (packed,))
            found = self._db.execute("SELECT id FROM layout WHERE series = ?", (packed,)).fetchone()
            self._layouts[series] = int(found[0])
        return self._layouts[series]

    def holds_arrays(self, series: tuple[int, ...]) -> bool:
        """Whether the newer points of all these series are arrays."""
        return self._of_arrays.issuperset(series)

    def expect_arrays(self, series: tuple[int, ...]) -> None:
        """Note that from now on these series hold arrays."""
        self._db.executemany("UPDATE series SET kind = 'array' WHERE id = ?", [(one,) for one in series])
        self._of_arrays.update(series)
        self._singles.clear()
        self._pieces.clear()

    def single(self, name: str, scope: str) -> Piece | None:
        """Return a series of numbers as a piece of a row; None for one that holds arrays."""
        piece = self._singles.get((name, scope))
        if piece is None:
            series = self.series(name, scope)
            if series in self._of_arrays:
                return None
            piece = self._singles[name, scope] = Piece((series,), {})
        return piece

    def piece(self, column: Column, names: tuple[str, ...]) -> Piece:
        """Return the series of a column's parameters, looked up by the identity of their names, then by value."""
        name, marks, checked = column.name, column.marks, column.checked
        found = self._pieces.get((name, id(names), id(marks), checked))
        if found is None:
            if len(self._pieces) >= KEPT:
                self._pieces.clear()
                self._names.clear()
                self._marks.clear()
            names = self._names.setdefault(names, names)
            marks = self._marks.setdefault(tuple(marks.items()), marks) if marks else None
            found = self._pieces.get((name, id(names), id(marks), checked))
        if found is None:
            found = _Found(self._new_piece(name, names, marks or {}, checked), names, marks)
            self._pieces[name, id(names), id(marks), checked] = found
        return found.piece

    def _new_piece(self, name: str, names: tuple[str, ...], marks: Mapping[str, str], checked: bool) -> Piece:
        series = tuple(self.series(name, scope) for scope in names)
        if len(set(series)) < len(series):
            raise ValueError("a parameter occurs twice")
        positions = {k: text(marks[scope]) for k, scope in enumerate(names) if scope in marks}
        return Piece(series, positions, checked, self._of_arrays.isdisjoint(series))


def text(value: str) -> str:
    """Return text that SQLite can hold; refuse what is not text at all."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    value.encode()
    return value
