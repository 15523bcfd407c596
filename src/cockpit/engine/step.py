"""Step: what has been seen of a step, and what is known of it in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.accumulated import Accumulated
from cockpit.engine.batch import Batch
from cockpit.engine.needs import Known, Need, TopEigenvalue
from cockpit.engine.ranks import Ranks
from cockpit.engine.statistics import Total
from cockpit.engine.table import Table


@dataclass(frozen=True, eq=False)
class Observed:
    """The outcome of a step."""

    examples: int
    table: Table
    known: dict[Known, Any]
    eigenvalues: dict[TopEigenvalue, Any]
    methods: dict[Need, Any]
    variances: dict[Need, float]
    notes: list[tuple[str, str]]
    """(kind, text) of things worth an event."""


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

    def known(
        self, gradients: bool, updates: dict[str, Tensor], examples: int, ranks: Ranks | None
    ) -> dict[Known, Any]:
        """Return the vectors that quantities may ask for."""
        known: dict[Known, Any] = {}
        if self.losses:
            losses = torch.cat([x.double().flatten() for x in self.losses])
            known[Known.LOSSES] = losses if ranks is None else ranks.cat(losses)
        if self.before:
            known[Known.PARAMETERS] = self.before
        if updates:
            known[Known.UPDATES] = updates
        mean = self._mean_gradients(examples, ranks) if gradients else None
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

    def all_notes(self, known: dict[Known, Any]) -> list[tuple[str, str]]:
        """Return what is worth an event: non-finite numbers, examples left out, and what was noted on the way."""
        notes = list(self.notes)
        if Known.LOSSES in known and not bool(known[Known.LOSSES].isfinite().all()):
            bad = torch.nonzero(~known[Known.LOSSES].isfinite()).flatten().tolist()
            text = f"{len(bad)} of the losses are NaN or infinite: examples {bad[:8]}"
            notes.append(("nonfinite_loss", text))
        names = [n for n, g in known.get(Known.GRADIENTS, {}).items() if not bool(g.isfinite().all())]
        if names:
            text = f"NaN or infinite gradients in {len(names)} parameters: {names[:8]}"
            notes.append(("nonfinite_gradient", text))
        dropped = sum(b.examples - b.examples_counted for b in self.batches)
        if dropped:
            text = f"{dropped} examples of weight zero were left out of the statistics"
            notes.append(("zero_weight", text))
        return notes
