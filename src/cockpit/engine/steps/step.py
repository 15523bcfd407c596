"""Step: what has been seen of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.answers.table import Table
from cockpit.engine.needs import Known, Need
from cockpit.engine.numbers.precision import wide_dtype
from cockpit.engine.statistics import Statistic, Total
from cockpit.engine.steps.accumulated import Accumulated
from cockpit.engine.steps.batch import Batch
from cockpit.engine.steps.foresight import Foresight
from cockpit.engine.steps.versions import Versions, gradient_versions
from cockpit.engine.tapes.recording import Recording
from cockpit.engine.tapes.replay import Replay


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
    replay: Replay | None = None
    """The recording that evaluates the step, where there is one."""
    recording: Recording | None = None
    """Notes of the step, where it is to be recorded."""
    last_factors: dict[str, float] = field(default_factory=dict)
    """The factors of the step before, of which a recording knows the vectors."""
    own: bool = False
    """Whether the objective is the plain mean of the losses, so that ``.grad`` holds nothing else."""
    lengths: dict[str, Tensor] = field(default_factory=dict)
    r"""$\|\sum_n g_n\|^2$ of every parameter, taken when the pass ended."""
    separations: dict[Statistic, dict[str, Tensor]] = field(default_factory=dict)
    plain: bool = False
    """Whether the update is expected to be a multiple of ``.grad``."""
    foresight: Foresight | None = None
    """What tells the update, where it is none, but follows from ``.grad`` and the optimiser's state."""
    fresh: bool = True
    """Whether nothing stood in ``.grad`` when its first pass began."""
    left: tuple[Versions, Sequence[int]] = ((), ())
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

    def versions(self) -> tuple[Versions, list[int]]:
        """Return what identifies the present content of every ``.grad``, and of the parameters that have one."""
        gradients = gradient_versions(self.parameters)
        values = self.parameters.values()
        return gradients, [p._version if seen else 0 for p, seen in zip(values, gradients, strict=True)]

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

    def all_notes(self) -> Sequence[tuple[str, str]]:
        """Return what is worth an event: examples left out, and what was noted on the way."""
        notes = tuple(self.notes)
        if not self.batches:
            return notes
        dropped = sum(b.examples - b.examples_counted for b in self.batches)
        if dropped:
            text = f"{dropped} examples of weight zero were left out of the statistics"
            notes = (*notes, ("zero_weight", text))
        return notes
