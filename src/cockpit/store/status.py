"""Statuses of many values: one code for each, and the words the codes stand for.

In the file they are JSON, ``{status: [positions]}``: the statuses that are not ok, each with the positions it holds at,
counted from 0. A pair ``[first, last]`` in the list stands for all positions from the first to the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]


class Status(NamedTuple):
    """``codes`` [count]: 0 is ok, ``k`` is ``words[k - 1]``; None where all are ok."""

    codes: Codes | None = None
    words: tuple[str, ...] = ()

    @staticmethod
    def of(count: int, found: Mapping[int, str]) -> Status:
        """Return the statuses of so many values, given by position where they are not ok."""
        marked = {position: text for position, text in found.items() if text != "ok"}
        if not marked:
            return Status()
        words = tuple(dict.fromkeys(marked.values()))
        numbers = {word: k + 1 for k, word in enumerate(words)}
        codes = np.zeros(count, np.int32)
        codes[list(marked)] = [numbers[text] for text in marked.values()]
        return Status(codes, words)

    @staticmethod
    def join(parts: list[tuple[Status, int]]) -> Status:
        """Put statuses one after another; each comes with the number of its values."""
        words = tuple(dict.fromkeys(word for status, _ in parts for word in status.words))
        if not words:
            return Status()
        numbers = {word: k + 1 for k, word in enumerate(words)}
        codes = [
            np.zeros(count, np.int32)
            if status.codes is None
            else np.array([0, *(numbers[word] for word in status.words)], np.int32)[status.codes]
            for status, count in parts
        ]
        return Status(np.concatenate(codes), words)

    def take(self, kept: npt.NDArray[np.int64] | slice) -> Status:
        """Return the statuses at the positions given."""
        return self if self.codes is None else Status(self.codes[kept], self.words)

    def at(self, position: int) -> str:
        """Return one of them."""
        code = 0 if self.codes is None else int(self.codes[position])
        return self.words[code - 1] if code else "ok"

    def packed(self) -> str | None:
        """Return them as they are stored; None where all are ok."""
        if self.codes is None or not self.codes.any():
            return None
        positions = {
            word: found
            for k, word in enumerate(self.words)
            if (found := _runs(np.flatnonzero(self.codes == k + 1)))
        }
        return json.dumps(positions, separators=(",", ":"))


class Texts(Sequence[str]):
    """Statuses to be read one by one, like a list; nothing is made of them before, so a million cost nothing."""

    def __init__(self, status: Status, count: int) -> None:
        self._status = status
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return list(self)[place]
        return self._status.at(range(self._count)[place])

    def __iter__(self) -> Iterator[str]:
        codes, words = self._status
        if codes is None:
            return repeat("ok", self._count)
        return map(("ok", *words).__getitem__, codes.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    __hash__ = None  # type: ignore[assignment]


def unpack_status(text: str | None, count: int) -> Status:
    """Undo `Status.packed`."""
    if text is None:
        return Status()
    found: dict[str, list[int | list[int]]] = json.loads(text)
    codes = np.zeros(count, np.int32)
    for k, positions in enumerate(found.values()):
        codes[[one for one in positions if isinstance(one, int)]] = k + 1
        for pair in positions:
            if isinstance(pair, list):
                codes[pair[0] : pair[1] + 1] = k + 1
    return Status(codes, tuple(found))


def _runs(positions: npt.NDArray[np.int64]) -> list[int | list[int]]:
    """Write ascending positions as numbers, three and more neighbours as a pair."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1)
    firsts = positions[np.append(0, breaks + 1)].tolist()
    lasts = positions[np.append(breaks, len(positions) - 1)].tolist()
    runs: list[int | list[int]] = []
    for first, last in zip(firsts, lasts, strict=True):
        runs += [[first, last]] if last - first > 1 else range(first, last + 1)
    return runs
