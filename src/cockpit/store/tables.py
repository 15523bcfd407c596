"""The writing side of the tables: records, columns, events and meta data become rows, in the caller's transaction."""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from cockpit.store.arrays import Arrays
from cockpit.store.chunks import Chunks
from cockpit.store.index import Index, text
from cockpit.store.record import NONFINITE, Column, Columns, Event, Histogram, Histograms, Numbers, Record
from cockpit.store.rows import Rows
from cockpit.store.status import Status

HOT_ROWS = 512
HOT_BYTES = 64 * 2**20
"""Step rows are moved into chunks when there are this many, or when they are this large."""

_bytes_of = struct.Struct("d").pack


class Tables:
    """Puts values into an open file; remembers what is in it.

    After a transaction that was rolled back the memory is wrong: make a new one.
    """

    def __init__(self, db: sqlite3.Connection):
        self._db = db
        self._chunks = Chunks(db)
        self._arrays = Arrays(db)
        self._index = Index(db)
        self._rows = Rows(db, self._index.layout)

    def put(self, items: Iterable[Record | Column | Columns]) -> list[str]:
        """Write values; return what was wrong with those that cannot be stored, once for each record."""
        refused: list[str] = []
        for item in chain.from_iterable(self._opened(item) for item in items):
            try:
                if type(item) is Column:
                    self._put_column(item)
                else:
                    self._put_record(item)  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                count = len(item) if isinstance(item, Column) else 1
                refused += [f"{item!r:.200}: {error}"] * count
        self._rows.write()
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
        self._arrays.cut(step)
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
        return self._rows.count >= HOT_ROWS or self._rows.size >= HOT_BYTES

    def compact(self) -> None:
        """Move the step rows into chunks; a reader sees no difference."""
        if self._rows.count:
            self._chunks.compact()
        self._rows.forget()

    def _opened(self, item: Record | Column | Columns) -> Iterable[Record | Column]:
        """Return what is to be written one by one: all but what comes of several steps, which is taken here."""
        if type(item) is not Columns:
            return (item,)  # type: ignore[return-value]
        try:
            return () if self._put_numbers(item) or self._put_histograms(item) else item
        except (TypeError, ValueError, OverflowError, AttributeError):
            return item  # which of them it is, is seen then

    def _put_numbers(self, columns: Columns) -> bool:
        """Write several steps of numbers; return whether that is what they are. If it raises, nothing is written."""
        parts, steps = columns.parts, columns.steps
        single = self._index.single(columns.name, "")
        if (
            isinstance(parts, list)
            or single is None
            or any(type(value) is not float for value in columns.values)
        ):
            return False
        piece = None
        if parts is not None and parts[0]:
            piece = self._index.piece(Column(0, columns.name, marks=columns.marks), parts[0])
            if not piece.numbers:
                return False
        values = np.array(columns.values, np.float64)[:, None]
        numbers = None if parts is None else np.asarray(parts[1], np.float64)
        self._rows.add_steps(steps, single, values, columns.statuses)
        if piece is not None and numbers is not None:
            self._rows.add_steps(steps, piece, numbers)
        return True

    def _put_histograms(self, columns: Columns) -> bool:
        """Write several steps of histograms; return whether that is what they are. If it raises, none is written."""
        parts, steps = columns.parts or [], [_checked(step) for step in columns.steps]
        if isinstance(parts, tuple) or not all(type(value) is Histogram for value in columns.values):
            return False
        if any(each.names is not parts[0].names for each in parts):
            return False
        piece = (
            self._index.piece(Column(0, columns.name, marks=columns.marks), parts[0].names) if parts else None
        )
        series = self._index.series(columns.name, "")
        self._expect_arrays((series,) if piece is None else (series, *piece.series))
        statuses = [text(status) for status in columns.statuses or ("ok",) * len(steps)]
        blocks: Sequence[Sequence[object]] = ()
        if piece is not None:
            status = Status.of(len(parts[0]), piece.marks).packed()
            blocks = self._arrays.blocks(self._index.layout(piece.series), steps, parts, status)
        self._arrays.put_histograms(series, steps, columns.values, statuses, blocks)  # type: ignore[arg-type]
        return True

    def _put_record(self, record: Record) -> None:
        value = record.value
        if type(value) is not float:
            if isinstance(value, Histogram) or (isinstance(value, np.ndarray) and value.ndim):
                self._put_array(record, value)
                return
            value = float(value)
        single = self._index.single(record.name, record.scope)
        if single is None:
            self._put_array(record, np.float64(value))
        else:
            self._rows.add(int(record.step), single, _bytes_of(value), str(record.status))

    def _put_array(self, record: Record, value: Histogram | np.ndarray | np.float64) -> None:
        step, series = _checked(record.step), self._index.series(record.name, record.scope)
        self._expect_arrays((series,))
        self._arrays.put(series, step, value, text(record.status))

    def _put_column(self, column: Column) -> None:
        step, name, value, parts = int(column.step), column.name, column.value, column.parts
        piece = self._index.piece(column, parts.names) if parts is not None and parts.names else None
        if type(value) is float and (single := self._index.single(name, "")) is not None:
            self._rows.add(step, single, _bytes_of(value), column.status)
        elif value is not None:
            self._put_record(Record(step, name, value, "", column.status))
        if piece is None or parts is None:
            return
        if isinstance(parts, Histograms):
            self._expect_arrays(piece.series)
            status = Status.of(len(parts), piece.marks).packed()
            layout = self._index.layout(piece.series)
            self._arrays.put_blocks(self._arrays.blocks(layout, (step,), (parts,), status))
        elif piece.numbers:
            self._rows.add(step, piece, parts.array.tobytes())
        else:
            self._put_one_by_one(column, parts)

    def _put_one_by_one(self, column: Column, parts: Numbers) -> None:
        """Write numbers of which some belong to series of arrays."""
        marks, usual = column.marks or {}, np.isfinite(parts.array) | (not column.checked)
        for (scope, value), is_usual in zip(parts.items(), usual.tolist(), strict=True):
            status = marks.get(scope, "ok") if is_usual else NONFINITE
            self._put_record(Record(column.step, column.name, value, scope, status))

    def _expect_arrays(self, series: tuple[int, ...]) -> None:
        if not self._index.holds_arrays(series):
            self._rows.write()  # numbers that came before are older
            self._index.expect_arrays(series)


def _checked(step: int) -> int:
    """Return a step that SQLite can hold."""
    if not -(2**63) <= int(step) < 2**63:
        raise OverflowError("the step does not fit into 64 bits")
    return int(step)
