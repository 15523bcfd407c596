"""Stretches: steps in a row whose numbers lie alike, taken from their transfers together.

A step's numbers are a few small arrays [P, …], and to look at them costs calls rather than arithmetic. So those of
some steps are put on top of each other, [S, P, …], and looked at with as many calls as one step's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.requests import GRADIENTS
from cockpit.engine.answers.scaling import scale
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Array, Arriving, taken_apart
from cockpit.engine.needs import Known


def alike(a: Observed, b: Observed) -> bool:
    """Say whether the numbers of two steps lie alike."""
    if a.table is b.table:  # which was found before they began to share it
        return True
    ours, its = a.sent, b.sent
    if a.examples != b.examples or len(ours) != len(its):
        return False
    if a.methods != b.methods or a.variances.keys() != b.variances.keys():
        return False
    if (a.scaling is None or a.scaling.rates is None) != (b.scaling is None or b.scaling.rates is None):
        return False
    for (layout, numbers, more), (other, others, too) in zip(ours, its, strict=True):
        if more != too or layout != other or numbers.shapes != others.shapes:
            return False
    return a.table.frame() == b.table.frame()


class Settled:
    """The numbers of steps that are alike, once they have arrived."""

    def __init__(self, steps: Sequence[Observed]) -> None:
        self._steps = steps
        self.table: Table = steps[0].table.emptied()
        """Numbers [S, P, …]."""
        self.losses: Tensor | None = None
        """[S, N]."""
        self._own: set[int] = set()
        for sent in zip(*(step.sent for step in steps), strict=True):
            layout, shapes = sent[0][0], sent[0][1].shapes
            vectors = _together([numbers for _, numbers, _ in sent])
            arrays = taken_apart(vectors, shapes, [len(names) for _, names in layout])
            settle = partial(self.table.settle_more, axis=1) if sent[0][2] else self.table.settle
            for (statistic, names), values in zip(layout, arrays, strict=False):
                settle(statistic, names, values)
            if len(arrays) > len(layout):
                self.losses = torch.from_numpy(arrays[-1])
        scalings = [step.scaling for step in steps if step.scaling is not None]
        if scalings:
            scale(self.table, scalings)
        if not self._finite():
            for k, step in enumerate(steps):
                self.step(k)
                step.settle()

    def step(self, k: int) -> Observed:
        """Return a step with its own numbers."""
        step = self._steps[k]
        if k not in self._own:
            self._own.add(k)
            step.sent = []
            step.scaling = None
            step.own().take(self.table, k)
            if self.losses is not None:
                step.known[Known.LOSSES] = self.losses[k]
        return step

    def part(self, which: slice) -> Table:
        """Return a table of the numbers of some of the steps."""
        table = self.table.emptied()
        table.take(self.table, which)
        return table

    def _finite(self) -> bool:
        """Say whether there is nothing to note of any step."""
        if self.losses is not None and not np.isfinite(self.losses.numpy()).all():
            return False
        return not self.table.has(GRADIENTS) or bool(np.isfinite(self.table.stacked(GRADIENTS)[1]).all())


def _together(steps: Sequence[Arriving]) -> list[Array | None]:
    """Return the vectors of some steps on top of each other, [S, numbers]."""
    found = zip(*(numbers.arrays() for numbers in steps), strict=True)
    return [None if vectors[0] is None else np.stack(vectors) for vectors in found]
