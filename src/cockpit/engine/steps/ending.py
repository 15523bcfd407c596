"""Ending: what is computed of a step when the optimiser has moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.answers.requests import GRADIENTS, MEAN, UPDATE, UPDATES, Requests
from cockpit.engine.answers.table import SEVERAL
from cockpit.engine.derived import Derived, MeanNorm2
from cockpit.engine.needs import Known
from cockpit.engine.numbers.lengths import multiples, squared_lengths
from cockpit.engine.statistics import Projection, Total
from cockpit.engine.steps.step import Step

Moved = dict[str, tuple[Tensor, float]]
"""The step taken: of every parameter a tensor and a factor."""
Reader = Callable[[Mapping[str, Tensor]], Moved | None]
"""Reads the step that parameters have just taken, where somebody knows it."""
CLIPPED = "clipped: gradients or parameters were changed between the backward pass and the step"


class Ending:
    """Turns what was seen of a step into its outcome.

    Args:
        step: what was seen.
        asked: what was asked.
        ranks: the processes of the run.
        rates: the parameters' learning rates if the step is a multiple of the gradient, else None.
        taken: reads the step from the optimiser's state, if no copy of the parameters was made.
    """

    def __init__(
        self,
        step: Step,
        asked: Requests,
        ranks: Ranks | None,
        rates: Mapping[str, float] | None,
        taken: Reader | None = None,
    ) -> None:
        self.step, self.asked, self.ranks, self.rates, self.taken = step, asked, ranks, rates, taken
        self.examples = step.examples
        if ranks is not None:
            self.examples = int(ranks.sum(torch.tensor(float(self.examples))))

    def observed(self, moved: bool) -> tuple[Observed, Moved]:
        """Return the outcome, and the step taken."""
        step, table, needs = self.step, self.step.table, self.asked.needs
        late = {MEAN, UPDATE} & needs
        left_out = late | {Total()} if step.own else late
        table.close([s for s in self.asked.joined if s not in left_out], self.ranks)
        if self.ranks is None:
            self._enter_sums()
        elif GRADIENTS in needs:  # each rank's ``.grad`` is its own, or the mean of all: not sure
            self._enter_joined()
        if MEAN in late and not step.immediate:
            self._project(MEAN, self._mean())
        elif MEAN in late and len(step.batches) > 1:
            table.void(MEAN, SEVERAL)
        updates = self._moved() if moved else {}
        if UPDATE in late and not step.plain and step.foresight is None:
            self._project(UPDATE, updates)
        follows = UPDATE in late and step.plain and bool(updates)
        table.close([s for s in (MEAN, UPDATE) if s in late and not (s == UPDATE and follows)], self.ranks)
        if step.foresight is not None and not table.is_void(UPDATE) and (factors := step.foresight.factors()):
            table.enter(UPDATE, multiples(table.by_parameter(UPDATE), factors))
        if follows:
            means = table.by_parameter(MEAN)
            followed = {n: m for n, m in means.items() if n in updates}
            table.enter(UPDATE, multiples(followed, {n: updates[n][1] for n in followed}))
        for statistic in self.asked.statistics:
            if isinstance(statistic, Derived) and not (step.own and isinstance(statistic, MeanNorm2)):
                table.derive(statistic, self.examples)
        for separation, lengths in step.separations.items():
            table.enter(separation, lengths, everywhere=True)
        known = step.known(needs, self.examples, self.ranks)
        if Known.UPDATES in needs and updates:
            known[Known.UPDATES] = {n: u if f == 1 else u * f for n, (u, f) in updates.items()}
        return Observed(self.examples, table, known), updates

    def _enter_sums(self) -> None:
        """Enter the mean gradient and its length, as they are known from ``.grad``."""
        step, table, sums = self.step, self.step.table, self.step.accumulated.sums()
        if step.own and self.asked.sums:
            zeros = {n: torch.zeros_like(step.parameters[n]) for n in table.covered if n not in sums}
            table.enter(Total(), {**{n: v * factor for n, (v, factor) in sums.items()}, **zeros})
        if not step.lengths:
            return
        zero = torch.zeros_like(next(iter(step.lengths.values())))
        scale = 1 / max(1, self.examples) ** 2
        mean2 = {n: step.lengths.get(n, zero) for n in step.parameters}
        mean2 = multiples(mean2, dict.fromkeys(mean2, scale))
        if GRADIENTS in self.asked.needs:
            table.enter(GRADIENTS, mean2, everywhere=True)
        if step.own and MeanNorm2() in self.asked.needs:
            table.enter(MeanNorm2(), mean2)

    def _enter_joined(self) -> None:
        """Enter the length of the mean gradient over all ranks, if every parameter's examples are known."""
        table = self.step.table
        totals = table.by_parameter(Total())
        if table.used <= set(totals):
            lengths = {n: MeanNorm2().derive(self.examples, t) for n, t in totals.items()}
            zeros = {n: torch.zeros((), dtype=torch.float64) for n in self.step.parameters if n not in totals}
            table.enter(GRADIENTS, {**lengths, **zeros}, everywhere=True)

    def _mean(self) -> Moved:
        """Return the mean gradient of the examples."""
        scale = 1 / max(1, self.examples)
        if self.step.own:
            return {n: (v, factor * scale) for n, (v, factor) in self.step.accumulated.sums().items()}
        return {n: (t, scale) for n, t in self.step.table.by_parameter(Total()).items()}

    def _moved(self) -> Moved:
        """Return the step taken, where somebody will need it, and enter its length."""
        step, table, wanted = self.step, self.step.table, UPDATES in self.asked.needs
        needed = bool(self.asked.needs & {UPDATE, Known.UPDATES})
        if not self.asked.moves:
            return {}
        if step.plain and self.rates is None:
            give_up_update(step)
            return {}
        if step.plain and self.rates is not None:
            rates = self.rates
            if wanted:  # the optimiser has subtracted the mean gradient
                gradients = table.by_parameter(GRADIENTS)
                # (A power beyond all numbers would be an error, a product is inf.)
                squares = {n: rates.get(n, 0.0) * rates.get(n, 0.0) for n in gradients}
                lengths = multiples(gradients, squares)
                table.enter(UPDATES, lengths, everywhere=True)
            if not needed:
                return {}
            return {n: _multiple(p, -rates.get(n, 0.0)) for n, p in step.parameters.items()}
        updates = self._compared() if step.before else self.taken and self.taken(step.parameters)
        if not updates:
            return {}
        if wanted:
            found = dict(zip(updates, squared_lengths([u for u, _ in updates.values()]), strict=True))
            lengths = multiples(found, {n: f * f for n, (_, f) in updates.items()})
            table.enter(UPDATES, lengths, everywhere=True)
        return updates if needed else {}

    def _compared(self) -> Moved:
        """Return the difference of the parameters and their copies from before the step."""
        step, names = self.step, list(self.step.parameters)
        now, before = [step.parameters[n].detach() for n in names], [step.before[n] for n in names]
        return {n: (u, 1.0) for n, u in zip(names, torch._foreach_sub(now, before), strict=True)}

    def _project(self, statistic: Projection, directions: Moved) -> None:
        for batch in self.step.batches:
            batch.project(statistic, directions)


def give_up_update(step: Step) -> None:
    """Say that a step expected to be a multiple of the gradient was none."""
    for statistic in (UPDATE, UPDATES):
        step.table.void(statistic, CLIPPED)


def _multiple(parameter: Tensor, factor: float) -> tuple[Tensor, float]:
    """Return a multiple of a parameter's gradient; one without a gradient does not move."""
    if parameter.grad is None:
        zero = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        return zero.expand(parameter.shape), 0.0
    return parameter.grad.detach(), factor
