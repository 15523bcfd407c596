"""The PTX of the counters, run instruction by instruction on 128 threads; kernels in the interpreter do without it.

Threads run one after another, in any order, from barrier to barrier: a missing barrier is noticed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cockpit.engine.kernels import tally
from cockpit.engine.kernels.language import INTERPRETED
from cockpit.engine.kernels.tally import LANES, MOST

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the same there")
Steps = Generator[None, None, Any]
"""A thread on its way; it stops at barriers."""
Counts = npt.NDArray[np.int64]


class Shared:
    """Shared memory, first full of anything, and the instructions that the counters need."""

    def __init__(self, size: int) -> None:
        self.bytes = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)

    def run(self, asm: Any, thread: int, *operands: int) -> Steps:
        text = (
            re.sub(r"^\.shared [^;]*;", "", getattr(asm, "value", asm))
            .strip()
            .removeprefix("{")
            .removesuffix("}")
        )
        values = {f"${k}": int(x) for k, x in enumerate(operands, 1)} | {
            "%tid.x": thread,
            "cockpit_counters": 0,
        }
        for line in re.split(r";\s*", text):
            op, _, rest = line.strip().partition(" ")
            names = re.findall(r"[^\s,{}\[\]+]+", rest)
            if op == "bar.sync":
                yield
            elif op == "st.shared.v4.b32":
                at = self.number(values, names[0]) + int(names[1])
                assert at % 16 == 0
                self.bytes[at : at + 16].view(np.uint32)[:] = [self.number(values, x) for x in names[2:]]
            elif op == "st.shared.u8":
                self.bytes[self.number(values, names[0])] = self.number(values, names[1])
            elif op and op != ".reg":
                values[names[0]] = self.computed(op, [self.number(values, x) for x in names[1:]])
        return values["$0"]

    @staticmethod
    def number(values: dict[str, int], name: str) -> int:
        return values[name] if name in values else int(name)

    def computed(self, op: str, x: list[int]) -> int:
        known: dict[str, Callable[..., int]] = {
            "mov.u32": lambda a: a,
            "mov.b32": lambda a: a,
            "add.u32": lambda a, b: a + b,
            "and.b32": lambda a, b: a & b,
            "shl.b32": lambda a, b: a << b,
            "shr.u32": lambda a, b: a >> b,
            "mad.lo.u32": lambda a, b, c: a * b + c,
            "dp4a.u32.u32": lambda a, b, c: c + sum((a >> k & 255) * (b >> k & 255) for k in (0, 8, 16, 24)),
            "ld.shared.u8": lambda at: int(self.bytes[at]),
            "ld.shared.u32": lambda at: int(self.bytes[at : at + 4].view(np.uint32)[0]),
        }
        return known[op](*x) & 0xFFFFFFFF


def together(threads: list[Steps]) -> list[Any]:
    """Return what threads return; all of them come to every barrier."""
    found: list[Any] = [None] * len(threads)
    arrived = len(threads)
    while arrived:
        arrived = 0
        for t in random.Random(0).sample(range(len(threads)), len(threads)):
            try:
                next(threads[t])
                arrived += 1
            except StopIteration as end:
                found[t] = end.value
        assert arrived in (0, len(threads))
    return found


@pytest.mark.parametrize(("size", "each"), [(128, 32), (256, 16), (128, 4)])
def test_values_of_lanes_are_counted_by_row(size: int, each: int) -> None:
    turn = MOST // each
    rng = np.random.default_rng(each)
    shape = LANES, 2 * turn + 1, each
    rows = np.where(rng.random(shape) < 0.9, 5, rng.integers(0, size, shape))  # many in one counter
    rows[0] = 3
    opened, cleared = {
        128: (tally.DECLARED, tally.CLEARED),
        256: (tally.DECLARED_MORE, tally.CLEARED_MORE),
    }[size]
    shared = Shared(LANES * size)

    def thread(t: int) -> Steps:
        yield from shared.run(opened, t, t)
        sums = [0] * (size // LANES)
        for k, tile in enumerate(rows[t], 1):
            for start in range(0, each, 4):
                yield from shared.run(tally.COUNTED, t, *tile[start : start + 4])
            if k % turn == 0 or k == len(rows[t]):
                for part in range(len(sums)):
                    sums[part] += yield from shared.run(tally.ADDED, t, part * LANES + t)
                yield from shared.run(cleared, t, t)
        return sums

    found: Counts = np.array(together([thread(t) for t in range(LANES)])).T.flatten()
    assert (found == np.bincount(rows.flatten(), minlength=size)).all()
    assert not shared.bytes.any()


def test_counters_are_told_apart() -> None:
    examples, turn = 12, 8
    rng = np.random.default_rng(0)
    at = rng.permutation(tally.BYTES)[: 4 * LANES].reshape(2, 2 * LANES)  # two counters of each position
    which = rng.integers(0, 2, (examples, 2 * LANES))
    shared = Shared(tally.BYTES)

    def thread(t: int) -> Steps:
        yield from shared.run(tally.DECLARED_MORE, t, t)
        words = []
        for k in range(examples):
            for position in (t, t + LANES):
                yield from shared.run(tally.COUNTED_AT, t, at[which[k, position], position])
            if (k + 1) % turn == 0 or k + 1 == examples:
                yield from shared.run(tally.BARRIER, t, t)
                read = []
                for word in range(t, tally.BYTES // 4, LANES):
                    read.append((yield from shared.run(tally.WORD, t, 4 * word)))
                words.append(read)
                yield from shared.run(tally.BARRIER, t, t)
                yield from shared.run(tally.CLEARED_MORE, t, t)
        return words

    words = np.array(together([thread(t) for t in range(LANES)]), np.uint32)
    for turned, first in enumerate(range(0, examples, turn)):
        expected: Counts = np.zeros(tally.BYTES, np.int64)
        for k in range(first, min(first + turn, examples)):
            expected[at[which[k], np.arange(2 * LANES)]] += 1
        found = np.ascontiguousarray(words[:, turned].T).view(np.uint8).flatten()
        assert (found == expected).all()
