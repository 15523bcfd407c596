"""Statuses of many values: one code for each, and the words the codes stand for.

In the file they are JSON, ``{status: [positions]}``: the statuses that are not ok, each with the positions it holds at,
counted from 0. A pair ``[first, last]`` in the list stands for all positions from the first to the last.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from cockpit.errors import CockpitError

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
        self.status = status
        self._count = count

    @staticmethod
    def of(texts: Sequence[str]) -> Texts:
        """Return any texts as such ones."""
        return (
            texts
            if isinstance(texts, Texts)
            else Texts(Status.of(len(texts), dict(enumerate(texts))), len(texts))
        )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Texts: ...

    def __getitem__(self, place: int | slice) -> str | Texts:
        if isinstance(place, slice):
            return Texts(self.status.take(place), len(range(self._count)[place]))
        return self.status.at(range(self._count)[place])

    def __iter__(self) -> Iterator[str]:
        codes, words = self.status
        if codes is None:
            return repeat("ok", self._count)
        return map(("ok", *words).__getitem__, codes.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))

    def counts(self) -> dict[str, int]:
        """Return how often each status occurs that does."""
        codes, words = self.status
        times = [self._count] if codes is None else np.bincount(codes, minlength=len(words) + 1).tolist()
        found: Counter[str] = Counter()
        for word, often in zip(("ok", *words), times, strict=True):
            found[word] += often
        return {word: often for word, often in found.items() if often}

    __hash__ = None  # type: ignore[assignment]


WORD, PAIR = -2, -1
"""What stands, among positions, before those of the next word, and before a pair."""

DAMAGED = "the file is damaged: there are statuses at positions where no values are."


@lru_cache(maxsize=64)  # chunks of one series, and step rows, often have the same
def unpack_status(text: str | None, count: int) -> Status:
    """Undo `Status.packed`; the codes cannot be written to.

    The positions of all words are decoded as one array of numbers: in a long run there are hundreds of thousands, and
    making an object of each takes twice the time.
    """
    if text is None:
        return Status()
    words, lists = _words_and_lists(text)
    found = _numbers(lists)
    code, pairs = np.cumsum(found == WORD), np.flatnonzero(found == PAIR)
    if found.max(initial=-1) >= count or pairs.max(initial=-3) + 2 >= len(found):
        raise CockpitError(DAMAGED)
    firsts, sizes = found[pairs + 1], np.maximum(0, found[pairs + 2] - found[pairs + 1] + 1)
    if sizes.sum() > count:
        raise CockpitError(DAMAGED)
    codes, single = np.zeros(count, np.int32), found >= 0
    single[pairs + 1] = single[pairs + 2] = False
    codes[found[single]] = code[single]
    inside = np.arange(sizes.sum()) + np.repeat(firsts - np.cumsum(sizes) + sizes, sizes)
    codes[inside] = np.repeat(code[pairs], sizes)
    codes.setflags(write=False)
    return Status(codes, tuple(words))


def _numbers(lists: list[str]) -> npt.NDArray[np.int64]:
    """Return the positions of all lists, with a ``WORD`` before each list and a ``PAIR`` before each pair."""
    if any(part.encode().translate(None, b"0123456789,[] \t\r\n") for part in lists):
        raise CockpitError(DAMAGED)
    marked = ",".join(f"{WORD},{part}" if part else str(WORD) for part in lists)
    text = marked.replace("[", f"{PAIR},").replace("]", "")
    found = np.fromstring(text, np.int64, sep=",") if text else np.empty(0, np.int64)
    if text and len(found) != text.count(",") + 1:
        raise CockpitError(DAMAGED)
    return found


def _words_and_lists(text: str) -> tuple[list[str], list[str]]:
    """Take a packed status apart: no list of positions has a quotation mark in it, so the next one begins a word."""
    decoder = json.JSONDecoder()
    words, lists, at = [], [], text.find('"')
    while at >= 0:
        word, end = decoder.raw_decode(text, at)
        at = text.find('"', end)
        words.append(word)
        lists.append(text[end : at if at >= 0 else None].strip(" \t\r\n:,}")[1:-1])
    return words, lists


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
