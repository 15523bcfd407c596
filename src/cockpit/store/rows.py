"""Numbers on their way into the table ``step_row``: gathered by step, put into shape for many steps at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from cockpit.store.codec import Floats
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
Taken = tuple[int, Piece, bytes, str]
"""Numbers of a piece at one step, and the status; first of all, the how manieth they are that came."""


@dataclass(frozen=True, eq=False)
class _Block:
    """Numbers of a piece at several steps, [S, W], and the statuses where not all are "ok"; they came as ``number``."""

    number: int
    steps: tuple[int, ...]
    piece: Piece
    values: Floats
    statuses: Sequence[str] | None

    def said(self, k: int) -> str:
        """Return the status of one step."""
        return "ok" if self.statuses is None else self.statuses[k]


class Rows:
    """Gathers numbers and writes one row for each step; of several numbers of one series and step the last counts.

    Args:
        db: an open file, in a transaction.
        layout: gives the number of a layout, a tuple of series.
    """

    def __init__(self, db: sqlite3.Connection, layout: Callable[[tuple[int, ...]], int]):
        self._db = db
        self._layout = layout
        self._came = 0
        self._steps: dict[int, list[Taken]] = {}
        self._blocks: list[_Block] = []
        self._plans: dict[tuple[Piece, ...], _Plan] = {}
        found = db.execute("SELECT count(*), total(length(data)) FROM step_row").fetchone()
        self.count, self.size = int(found[0]), int(found[1])  # of what lies in the table

    def add(self, step: int, piece: Piece, data: bytes, status: str = "ok") -> None:
        """Take the numbers of a piece, float64 in the machine's byte order; a status only where it is one number."""
        if not -(2**63) <= step < 2**63:
            raise OverflowError("the step does not fit into 64 bits")
        self._came += 1
        self._steps.setdefault(step, []).append((self._came, piece, data, status))

    def add_steps(
        self, steps: tuple[int, ...], piece: Piece, values: Floats, statuses: Sequence[str] | None = None
    ) -> None:
        """Take the numbers of a piece at several steps, [S, W]; statuses as in `add`."""
        if min(steps) < -(2**63) or max(steps) >= 2**63:
            raise OverflowError("a step does not fit into 64 bits")
        self._came += 1
        block = _Block(self._came, steps, piece, values, statuses)
        if len(set(steps)) == len(steps):
            self._blocks.append(block)
        else:
            self._scatter(block, range(len(steps)))

    def write(self) -> None:
        """Write what was taken. Steps made of the same pieces have the same layout and are handled together."""
        blocks, self._blocks = self._blocks, []
        for block in blocks:  # of which some steps have more than blocks
            self._scatter(block, [k for k, step in enumerate(block.steps) if step in self._steps])
        groups: dict[tuple[Piece, ...], tuple[list[int], list[bytes], list[Said]]] = {}
        for step, taken in self._steps.items():
            taken.sort(key=itemgetter(0))
            steps, data, statuses = groups.setdefault(
                tuple([piece for _, piece, _, _ in taken]), ([], [], [])
            )
            steps.append(step)
            data += [numbers for _, _, numbers, _ in taken]
            statuses.append({k: status for k, (*_, status) in enumerate(taken) if status != "ok"})
        for pieces, (steps, data, statuses) in groups.items():
            self._insert(pieces, steps, np.frombuffer(b"".join(data)).reshape(len(steps), -1), statuses)
        self._write_blocks(blocks)
        self._steps = {}

    def _scatter(self, block: _Block, which: Iterable[int]) -> None:
        """Take some steps of a block one by one."""
        for k in which:
            data = block.values[k].tobytes()
            self._steps.setdefault(block.steps[k], []).append(
                (block.number, block.piece, data, block.said(k))
            )

    def _write_blocks(self, blocks: Sequence[_Block]) -> None:
        """Write the steps of blocks for which nothing came one by one."""
        wanted = np.array(sorted({step for block in blocks for step in block.steps} - self._steps.keys()))
        if not len(wanted):
            return
        places = np.full((len(blocks), len(wanted)), -1)
        """Of each block, where each step is."""
        for row, block in zip(places, blocks, strict=True):
            steps = np.array(block.steps)
            where = np.minimum(np.searchsorted(wanted, steps), len(wanted) - 1)
            known = np.flatnonzero(wanted[where] == steps)
            row[where[known]] = known
        kinds, kind_of = np.unique(places >= 0, axis=1, return_inverse=True)
        for k in range(kinds.shape[1]):
            columns = np.flatnonzero(kind_of.reshape(-1) == k)
            members = [(blocks[b], places[b, columns]) for b in np.flatnonzero(kinds[:, k]).tolist()]
            table = np.concatenate([block.values[chosen] for block, chosen in members], axis=1)
            statuses: list[Said] = [{} for _ in columns]
            for m, (block, chosen) in enumerate(members):
                for said, place in zip(statuses, chosen.tolist(), strict=True) if block.statuses else ():
                    if (status := block.said(place)) != "ok":
                        said[m] = status
            pieces = tuple([block.piece for block, _ in members])
            self._insert(pieces, wanted[columns].tolist(), table, statuses)

    def _insert(
        self, pieces: tuple[Piece, ...], steps: list[int], table: Floats, statuses: list[Said]
    ) -> None:
        """Write steps that are made of the same pieces."""
        plan = self._plans.get(pieces)
        if plan is None:
            if len(self._plans) >= KEPT:
                self._plans.clear()
            plan = self._plans[pieces] = _Plan(pieces, self._layout)
        self._db.executemany(
            "INSERT INTO step_row (step, layout, data, status) VALUES (?, ?, ?, ?)",
            plan.rows(steps, table, statuses),
        )
        self.count += len(steps)
        self.size += table.nbytes

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
        self, steps: list[int], table: Floats, statuses: list[Said]
    ) -> Iterator[tuple[int, int, bytes, str | None]]:
        """Yield rows of (step, layout, data, status)."""
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
