"""Step: what has been seen of a step, and what is known of it in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit.engine.accumulated import Accumulated
from cockpit.engine.batch import Batch
from cockpit.engine.capture import Use
from cockpit.engine.curvature import wide_dtype
from cockpit.engine.needs import Known, Need, TopEigenvalue
from cockpit.engine.ranks import Ranks
from cockpit.engine.requests import GRADIENTS
from cockpit.engine.scaling import Scaling
from cockpit.engine.statistics import Statistic, Total
from cockpit.engine.table import Table
from cockpit.engine.tape import Layout, Tape
from cockpit.engine.transfer import Transfer, packed


@dataclass(eq=False)
class Observed:
    """The outcome of a step; its numbers are on their way to the host until `settle` is called."""

    examples: int
    table: Table
    known: dict[Known, Any]
    eigenvalues: dict[TopEigenvalue, Any] = field(default_factory=dict)
    methods: dict[Need, Any] = field(default_factory=dict)
    variances: dict[Need, float] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(kind, text) of things worth an event."""
    _sent: list[tuple[Layout, Transfer, Scaling | None]] = field(default_factory=list)

    def send(self) -> None:
        """Start the transfer of all small numbers, in one piece."""
        numbers = self.table.numbers()
        tensors = [t for _, _, values in numbers for t in values]
        if self.known.get(Known.LOSSES) is not None:
            tensors.append(self.known[Known.LOSSES])
        if tensors:
            self.add([(statistic, names) for statistic, names, _ in numbers], Transfer(packed(tensors)))

    def add(self, layout: Layout, transfer: Transfer, scaling: Scaling | None = None) -> None:
        """Expect numbers from a transfer: statistics in this order, and what is left are the losses."""
        self._sent.append((layout, transfer, scaling))

    @property
    def heavy(self) -> bool:
        """Whether it holds vectors of the model's size, which are let go as soon as possible."""
        return bool(self.known.keys() - {Known.LOSSES})

    @property
    def arrived(self) -> bool:
        """Whether `settle` would not wait."""
        return all(transfer.arrived for _, transfer, _ in self._sent)

    def settle(self) -> None:
        """Take the numbers as they arrive on the host, and note what is not finite."""
        for layout, transfer, scaling in self._sent:
            arrays = transfer.stacks([len(names) for _, names in layout])
            for (statistic, names), values in zip(layout, arrays, strict=False):
                self.table.settle(statistic, names, values)
            if len(arrays) > len(layout):
                self.known[Known.LOSSES] = torch.from_numpy(arrays[-1])
            if scaling is not None:
                scaling.apply(self.table)
        self._sent.clear()
        self.notes += self._nonfinite()

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


@dataclass(eq=False)
class Step:
    """What has been seen of the present step, micro-batch by micro-batch."""

    parameters: dict[str, Tensor]
    table: Table
    accumulated: Accumulated
    before: dict[str, Tensor] = field(default_factory=dict)
    """The parameters before the step, where somebody needs them."""
    losses: list[Tensor] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    received: list[tuple[Use, tuple[Tensor | None, ...]]] | None = None
    """Output gradients that are only collected, where the step is replayed from a recording."""
    tape: Tape | None = None
    last_factors: dict[str, float] = field(default_factory=dict)
    """The factors of the step before, of which a recording knows the vectors."""
    own: bool = False
    """Whether the objective is the plain mean of the losses, so that ``.grad`` holds nothing else."""
    lengths: dict[str, Tensor] = field(default_factory=dict)
    r"""$\|\sum_n g_n\|^2$ of every parameter, taken when the pass ended."""
    separations: dict[Statistic, dict[str, Tensor]] = field(default_factory=dict)
    plain: bool = False
    """Whether the update is expected to be a multiple of ``.grad``."""
    left: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """What gradients and parameters were when the last pass ended."""
    looked: bool = False
    touched: bool = False
    """Whether somebody changed gradients or parameters between the last pass and the optimiser's step."""
    immediate: bool = False
    """Whether projections on the mean gradient were made at once, for want of another micro-batch."""
    entered: int = 0
    spoiled: bool = False
    """Whether something failed in the middle of a backward pass, so that nothing of the step can be trusted."""

    @property
    def examples(self) -> int:
        """Examples of this process that count."""
        return sum(b.examples_counted for b in self.batches) or sum(len(x) for x in self.losses)

    def gradient_versions(self) -> dict[str, tuple[int, int]]:
        """Return what identifies the present content of every ``.grad``."""
        return {n: (id(p.grad), p.grad._version) for n, p in self.parameters.items() if p.grad is not None}

    def versions(self) -> dict[str, tuple[int, int, int]]:
        """Return what identifies the present content of every ``.grad`` and its parameter."""
        return {
            n: (id(p.grad), p.grad._version, p._version)
            for n, p in self.parameters.items()
            if p.grad is not None
        }

    def left_gradients(self) -> dict[str, tuple[int, int]]:
        """Return what identified the content of every ``.grad`` when the last pass ended."""
        return {n: found[:2] for n, found in self.left.items()}

    def known(self, needs: frozenset[Need], examples: int, ranks: Ranks | None) -> dict[Known, Any]:
        """Return the vectors that quantities may ask for, all but the update."""
        known: dict[Known, Any] = {}
        if self.losses:
            losses = (
                self.losses[0] if len(self.losses) == 1 else torch.cat([x.flatten() for x in self.losses])
            )
            losses = losses.flatten().to(wide_dtype(losses.device))
            known[Known.LOSSES] = losses if ranks is None else ranks.cat(losses)
        if self.before and Known.PARAMETERS in needs:
            known[Known.PARAMETERS] = self.before
        mean = self._mean_gradients(examples, ranks) if Known.GRADIENTS in needs else None
        if mean is not None:
            known[Known.GRADIENTS] = {
                n: mean.get(n, torch.zeros((), dtype=p.dtype, device=p.device).expand_as(p))
                for n, p in self.parameters.items()
            }
        return known

    def _mean_gradients(self, examples: int, ranks: Ranks | None) -> dict[str, Tensor] | None:
        if ranks is None:
            return self.accumulated.mean()
        # Each rank's ``.grad`` is its own, or the mean of all: only sums of examples are sure.
        found = {n: t / max(1, examples) for n, t in self.table.by_parameter(Total()).items()}
        return found if self.table.used <= set(found) else None

    def all_notes(self) -> list[tuple[str, str]]:
        """Return what is worth an event: examples left out, and what was noted on the way."""
        notes = list(self.notes)
        dropped = sum(b.examples - b.examples_counted for b in self.batches)
        if dropped:
            text = f"{dropped} examples of weight zero were left out of the statistics"
            notes.append(("zero_weight", text))
        return notes
