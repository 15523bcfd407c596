"""Numbers on their way into the table ``step_row``: gathered by step, put into shape for many steps at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from cockpit.store.record import NONFINITE
from cockpit.store.status import Status

KEPT = 256
"""So many plans, and texts of statuses in each, are remembered."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Values that come together: their series, and the statuses they have anyway, by position.

    ``checked``: what is not finite is marked. ``numbers``: none of the series holds arrays.
    """

    series: tuple[int, ...]
    marks: Mapping[int, str]
    checked: bool = False
    numbers: bool = True


Said = dict[int, str]
"""Statuses of pieces that are one number, by the place of the piece in its step."""


class Rows:
    """Gathers numbers and writes one row for each step; of several numbers of one series and step the last counts.

    Args:
        db: an open file, in a transaction.
        layout: gives the number of a layout, a tuple of series.
    """

    def __init__(self, db: sqlite3.Connection, layout: Callable[[tuple[int, ...]], int]):
        self._db = db
        self._layout = layout
        self._steps: dict[int, tuple[list[Piece], list[bytes], Said]] = {}
        self._plans: dict[tuple[Piece, ...], _Plan] = {}
        found = db.execute("SELECT count(*), total(length(data)) FROM step_row").fetchone()
        self.count, self.size = int(found[0]), int(found[1])  # of what lies in the table

    def add(self, step: int, piece: Piece, data: bytes, status: str = "ok") -> None:
        """Take the numbers of a piece, float64 in the machine's byte order; a status only where it is one number."""
        found = self._steps.get(step)
        if found is None:
            if not -(2**63) <= step < 2**63:
                raise OverflowError("the step does not fit into 64 bits")
            found = self._steps[step] = ([], [], {})
        pieces, parts, said = found
        if status != "ok":
            said[len(pieces)] = status
        pieces.append(piece)
        parts.append(data)

    def write(self) -> None:
        """Write what was taken. Steps made of the same pieces have the same layout and are handled together."""
        groups: dict[tuple[Piece, ...], tuple[list[int], list[bytes], list[Said]]] = {}
        for step, (pieces, parts, said) in self._steps.items():
            steps, data, statuses = groups.setdefault(tuple(pieces), ([], [], []))
            steps.append(step)
            data += parts
            statuses.append(said)
        self._steps = {}
        for signature, (steps, data, statuses) in groups.items():
            plan = self._plans.get(signature)
            if plan is None:
                if len(self._plans) >= KEPT:
                    self._plans.clear()
                plan = self._plans[signature] = _Plan(signature, self._layout)
            joined = b"".join(data)
            self._db.executemany(
                "INSERT INTO step_row (step, layout, data, status) VALUES (?, ?, ?, ?)",
                plan.rows(steps, joined, statuses),
            )
            self.count += len(steps)
            self.size += len(joined)

    def forget(self) -> None:
        """The table has been emptied."""
        self.count = self.size = 0


class _Plan:
    """How pieces, one after another, become a row: sorted by series, so that their order makes no new layout."""

    def __init__(self, pieces: tuple[Piece, ...], layout: Callable[[tuple[int, ...]], int]):
        series = [number for piece in pieces for number in piece.series]
        last = {number: place for place, number in enumerate(series)}
        chosen = sorted(last)
        order = [last[number] for number in chosen]
        self._number = layout(tuple(chosen))
        self._order = None if order == list(range(len(series))) else np.array(order)
        self._width = len(series)
        place_in_row = {place: k for k, place in enumerate(order)}
        self._marks: dict[int, str] = {}
        self._single: list[int | None] = []  # where in the row the first number of each piece is, if it is
        checked = np.zeros(len(chosen), dtype=bool)
        start = 0
        for piece in pieces:
            places = [place_in_row.get(start + k) for k in range(len(piece.series))]
            start += len(places)
            self._single.append(places[0] if places else None)
            self._marks.update({places[k]: text for k, text in piece.marks.items() if places[k] is not None})  # type: ignore[misc]
            if piece.checked:
                checked[[place for place in places if place is not None]] = True
        self._checked = checked if checked.any() else None
        self._texts: dict[tuple[object, ...], str | None] = {}

    def rows(
        self, steps: list[int], data: bytes, statuses: list[Said]
    ) -> Iterator[tuple[int, int, bytes, str | None]]:
        """Yield rows of (step, layout, data, status)."""
        table = np.frombuffer(data, np.float64).reshape(len(steps), self._width)
        if self._order is not None:
            table = table[:, self._order]
        bad = None
        if self._checked is not None and not (finite := np.isfinite(table)).all():
            bad = ~finite & self._checked
        packed = table.astype(">f8")
        usual = self._text({}, None)
        for k, (step, said) in enumerate(zip(steps, statuses, strict=True)):
            text = self._text(said, None if bad is None else bad[k]) if said or bad is not None else usual
            yield step, self._number, packed[k].tobytes(), text

    def _text(self, said: Said, bad: np.ndarray | None) -> str | None:
        key = (*said.items(), None if bad is None else bad.tobytes())
        if key not in self._texts:
            if len(self._texts) >= KEPT:
                self._texts.clear()
            found = dict(self._marks)
            for piece, text in said.items():
                if (place := self._single[piece]) is not None:
                    found[place] = text
            if bad is not None:
                found |= dict.fromkeys(np.flatnonzero(bad).tolist(), NONFINITE)
            width = self._width if self._order is None else len(self._order)
            self._texts[key] = Status.of(width, found).packed()
        return self._texts[key]
