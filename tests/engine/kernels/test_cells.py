"""The PTX of the counters, run instruction by instruction; kernels in the interpreter do without it."""

from __future__ import annotations

import random
import re
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from cockpit.engine.kernels import cells
from cockpit.engine.kernels.language import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the same there")
Steps = Generator[None, None, int]
"""A lane on its way; it stops at barriers."""


class Shared:
    """Shared memory, first full of anything, and the instructions that the counters need."""

    def __init__(self, asm: str) -> None:
        (size,) = re.findall(r"\.b8 cockpit_cells\[(\d+)\];", asm)
        self.words = np.random.default_rng(0).integers(1, 2**31, int(size) // 4)

    def run(self, asm: Any, *operands: int) -> Steps:
        text = re.sub(r"^\.shared [^;]*;", "", getattr(asm, "value", asm)).strip().strip("{} ")
        values = {f"${k}": x for k, x in enumerate(operands, 1)} | {"cockpit_cells": 0}
        for line in re.split(r";\s*", text):
            op, _, rest = line.strip().partition(" ")
            names = [name.strip("[] ") for name in rest.split(",")]
            read = [values[n] if n in values else int(n) if n.isdigit() else 0 for n in names]
            match op:
                case "bar.sync":
                    yield
                case "mov.u32" | "mov.b32":
                    values[names[0]] = read[1]
                case "mad.lo.u32":
                    values[names[0]] = read[1] * read[2] + read[3]
                case "red.shared.add.u32":
                    self.words[read[0] // 4] += read[1]
                case "st.shared.u32":
                    self.words[read[0] // 4] = read[1]
                case "ld.shared.u32":
                    values[names[0]] = int(self.words[read[1] // 4])
                case _:
                    assert op in ("", ".reg"), line
        return values["$0"]


@pytest.mark.parametrize(
    ("least", "warps", "unit", "words"), [(128, 4, 256, 256), (257, 2, 256, 512), (2295, 8, 1024, 3072)]
)
def test_there_are_enough_counters(least: int, warps: int, unit: int, words: int) -> None:
    found = cells.declared(least, warps, unit)
    assert (found["WORDS"], found["LANES"], found["num_warps"]) == (words, 32 * warps, warps)
    assert len(Shared(found["OPENED"]).words) == words


def test_nothing_is_declared_for_nothing() -> None:
    assert cells.declared(0, 4)["OPENED"] == ""


def test_ones_are_added_where_they_belong() -> None:
    """Lanes run one after another, in any order, from barrier to barrier: a missing one is noticed."""
    told = cells.declared(300, 4)
    shared, lanes, words = Shared(told["OPENED"]), told["LANES"], told["WORDS"]
    rng = np.random.default_rng(1)
    at = np.where(rng.random((lanes, 8)) < 0.5, 7, rng.integers(0, words, (lanes, 8)))

    def lane(t: int) -> Generator[None, None, list[int]]:
        own = yield from shared.run(told["OPENED"], t)
        for start in range(0, words, lanes):
            yield from shared.run(cells.CLEARED, start + own)
        yield from shared.run(cells.WAITED, t)
        for k in (0, 4):
            yield from shared.run(cells.ADDED_ONES, *map(int, at[t, k : k + 4]))
        yield from shared.run(cells.WAITED, t)
        found = []
        for start in range(0, words, lanes):
            found.append((yield from shared.run(cells.READ, start + own)))
        return found

    threads, found = [lane(t) for t in range(lanes)], np.zeros((lanes, words // lanes), np.int64)
    for turn in range(3):
        for t in random.Random(turn).sample(range(lanes), lanes):
            try:
                next(threads[t])
                assert turn < 2
            except StopIteration as end:
                found[t] = end.value
    assert (found.T.flatten() == np.bincount(at.flatten(), minlength=words)).all()
