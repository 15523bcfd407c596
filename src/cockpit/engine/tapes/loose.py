"""Loose: the parameters of a replayed step whose calls are not part of its recording, evaluated the ordinary way."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.table import Table
from cockpit.engine.numbers.precision import wide
from cockpit.engine.seeing.use import Use
from cockpit.engine.statistics import Total
from cockpit.engine.steps.batch import Batch
from cockpit.engine.tapes.recording import Grads
from cockpit.engine.tapes.tape import Asked


class Loose:
    """Evaluates some parameters of a step by a `Batch` of their own."""

    def __init__(self, batch: Batch, asked: Asked) -> None:
        self.batch, self.asked = batch, asked
        batch.factor = 1 / asked.weight
        self._lengths: dict[str, Tensor] = {}

    @property
    def table(self) -> Table:
        """Their statistics."""
        return self.batch.table

    def receive(self, use: Use, grads: Grads) -> None:
        """Take a call's output gradients."""
        self.batch.receive(use, grads)

    def end(self, last: Mapping[str, Tensor]) -> None:
        """Evaluate the rest when the backward pass is over; ``last`` is where the step before is kept."""
        self.batch.end()
        grads = {
            name: wide(p.grad.detach()) for name, p in self.batch.parameters.items() if p.grad is not None
        }
        self._lengths = self.asked.lengths(grads)
        if self.asked.sums:
            for name, gradient in grads.items():
                self.table.add(Total(), name, gradient * self.asked.examples)
        if self.asked.plain and self.asked.steps:
            torch._foreach_copy_([last[name] for name in grads], list(grads.values()))

    def observe(self, observed: Observed, updates: Mapping[str, Tensor]) -> None:
        """Send the numbers to the host when the optimiser has moved."""
        asked, table = self.asked, self.table
        late = self.batch.late
        for statistic in late:
            self.batch.project(statistic, {name: (update, 1.0) for name, update in updates.items()})
        table.close([*self.batch.statistics, *late, *([Total()] if asked.sums else [])])
        asked.fold(table, self._lengths)
        for name, reason in table.gaps.items():
            observed.table.gap(name, reason)
        observed.send_numbers(table, more=True)
