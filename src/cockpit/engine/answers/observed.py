"""Observed: the outcome of a step, whose numbers are on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit.engine.answers.reel import Layout
from cockpit.engine.answers.requests import GRADIENTS
from cockpit.engine.answers.scaling import Scaling
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Arriving, Transfer, packed
from cockpit.engine.needs import Known, Need, TopEigenvalue


@dataclass(eq=False, slots=True)
class Observed:
    """The outcome of a step; its numbers are on their way to the host until `settle` is called."""

    examples: int
    table: Table
    known: dict[Known, Any]
    eigenvalues: dict[TopEigenvalue, Any] = field(default_factory=dict)
    methods: dict[Need, Any] = field(default_factory=dict)
    variances: dict[Need, float] = field(default_factory=dict)
    notes: Sequence[tuple[str, str]] = ()
    """(kind, text) of things worth an event."""
    scaling: Scaling | None = None
    """What follows from the numbers by factors known on the host."""
    sent: list[tuple[Layout, Arriving, bool]] = field(default_factory=list)
    """Numbers under way, as `add` was told of them."""

    def send(self) -> None:
        """Start the transfer of all small numbers, in one piece."""
        losses = self.known.get(Known.LOSSES)
        if losses is not None or self.table.entered:
            self.send_numbers(self.table, [] if losses is None else [losses])

    def send_numbers(self, table: Table, losses: Sequence[Tensor] = (), more: bool = False) -> None:
        """Start the transfer of a table's small numbers and of losses, as `add` wants to know of them."""
        numbers = table.numbers()
        tensors = [*(t for _, _, values in numbers for t in values), *losses]
        if tensors:
            layout = [(statistic, names) for statistic, names, _ in numbers]
            self.add(layout, Transfer(packed(tensors)), more)

    def add(self, layout: Layout, numbers: Arriving, more: bool = False) -> None:
        """Expect numbers: statistics in this order, and what is left are the losses.

        ``more``: of further parameters than those that came before.
        """
        self.sent.append((layout, numbers, more))

    @property
    def heavy(self) -> bool:
        """Whether it holds vectors of the model's size, which are let go as soon as possible."""
        return bool(self.known.keys() - {Known.LOSSES})

    @property
    def small(self) -> bool:
        """Whether it holds nothing but small numbers, so that it may wait for others."""
        return not self.heavy and all([statistic.small for statistic in self.table.entered])

    @property
    def size(self) -> int:
        """How many bytes of numbers are under way."""
        return sum([numbers.size for _, numbers, _ in self.sent])

    @property
    def arrived(self) -> bool:
        """Whether `settle` would not wait."""
        return all([numbers.arrived for _, numbers, _ in self.sent])

    def hasten(self) -> None:
        """Have numbers sent that wait for those of other steps."""
        for _, numbers, _ in self.sent:
            numbers.hasten()

    def own(self) -> Table:
        """Return its table, to enter numbers into: not the empty one that it may `share`."""
        if self.table.blank:
            self.table = self.table.emptied()
        self.known = dict(self.known)
        return self.table

    def share(self, table: Table, known: dict[Known, Any]) -> None:
        """Wait with the empty table of a step that is alike: Python's garbage collector walks over all that wait."""
        told = {*self.known.values(), *known.values()} - {None}
        if not told and self.table.blank and table.blank and self.known.keys() == known.keys():
            self.table, self.known = table, known

    def settle(self) -> None:
        """Take the numbers as they arrive on the host, and note what is not finite."""
        self.own()
        for layout, numbers, more in self.sent:
            arrays = numbers.stacks([len(names) for _, names in layout])
            settle = self.table.settle_more if more else self.table.settle
            for (statistic, names), values in zip(layout, arrays, strict=False):
                settle(statistic, names, values)
            if len(arrays) > len(layout):
                self.known[Known.LOSSES] = torch.from_numpy(arrays[-1])
        if self.scaling is not None:
            self.scaling.apply(self.table)
        self.sent = []  # (a new one: another thread may be comparing the old one)
        self.notes = (*self.notes, *self._nonfinite())

    def _nonfinite(self) -> list[tuple[str, str]]:
        notes = []
        losses = self.known.get(Known.LOSSES)
        if losses is not None and not np.isfinite(losses := losses.numpy()).all():
            bad = np.flatnonzero(~np.isfinite(losses)).tolist()
            text = f"{len(bad)} of the losses are NaN or infinite: examples {bad[:8]}"
            notes.append(("nonfinite_loss", text))
        if self.table.has(GRADIENTS):
            names, lengths = self.table.stacked(GRADIENTS)
            if not isfinite(lengths.sum()):
                infinite = [name for name, x in zip(names, lengths.tolist(), strict=True) if not isfinite(x)]
                text = f"NaN or infinite gradients in {len(infinite)} parameters: {infinite[:8]}"
                notes.append(("nonfinite_gradient", text))
        return notes
