r"""Batch: one watched backward pass, turned into statistics layer by layer and then let go.

Output gradients carry the weighting of the user's objective,
$\partial L / \partial z = w_i\, \partial \ell_i / \partial z$ with $w_i = \partial L / \partial \ell_i$: the
mean's 1/N, a sum's 1, an AMP scale, sample weights, accumulation. A hook on the losses sees $w$, and dividing
by it in this one place leaves gradients of the examples' own losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from cockpit.engine.capture import Capture, Use
from cockpit.engine.coverage import Plan, Way, confirmed, parts_of
from cockpit.engine.fallback import rows
from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.layers.formula import Layout
from cockpit.engine.parts import Dense, Part, wide
from cockpit.engine.statistics import Direction, Projection, Statistic
from cockpit.engine.table import Table

HOLD = 2**26
"""How many written-out gradient elements may wait for a direction that is known later (512 MiB in float64)."""


class Batch:
    """The statistics of one micro-batch while its backward pass runs."""

    def __init__(
        self,
        capture: Capture,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        examples: int,
        table: Table,
        statistics: Iterable[Statistic],
        directions: Mapping[Direction, Mapping[str, Tensor]],
        late: Iterable[Statistic] = (),
    ) -> None:
        self.plan, self.parameters, self.table = plan, parameters, table
        self.examples = examples
        self.statistics, self.late, self.directions = list(statistics), list(late), directions
        self.held: list[tuple[str, ExampleGradients, list[Use]]] = []
        self.index = table.batches
        self.keep: Tensor | None = None
        self.weights: Tensor | None = None
        self._numbers = {id(use): k for use, k in capture.numbered()}
        self._names = {id(p): name for name, p in parameters.items()}
        self._parts: dict[str, list[Part]] = {}
        self._sources: dict[str, list[Use]] = {}
        self._done: set[str] = set()
        self._totals: dict[str, Tensor] = {}
        gaps = {name: plan.ways[name].reason for name in plan.names(Way.NONE)}
        unused = plan.names(Way.UNUSED)
        table.begin(examples, [name for name in parameters if name not in unused], gaps)

    @property
    def examples_counted(self) -> int:
        """Examples whose weight is not zero."""
        return self.examples if self.keep is None else len(self.keep)

    def weigh(self, weights: Tensor, losses: Tensor | None) -> None:
        """Take note of the objective's weights; examples of weight zero do not count."""
        self.weights = weights
        if losses is not None and not bool((weights != 0).all()):
            self.keep = torch.nonzero(weights != 0).flatten()
            self.table.resize(len(self.keep))
            self.serve(losses)

    def serve(self, losses: Tensor) -> None:
        """Serve the parameters that no formula knows from the live graph."""
        names = [n for n in self.parameters if self.plan.ways[n].way.by_graph]
        if not names or not (self.statistics or self.late):
            return
        chosen = {name: self.parameters[name] for name in names}
        numbers = len(losses) * sum(p.numel() for p in chosen.values())
        hold = bool(self.late) and numbers <= HOLD
        if not hold:  # what has no factors would be held written out, N x D
            for statistic in self.late:
                self.table.void(
                    statistic, f"too_large: {numbers:.1g} numbers would have to be kept for the step"
                )
        losses = losses if self.keep is None else losses[self.keep]
        mean = self._mean(losses, chosen)
        try:
            vectorised = not any(self.plan.ways[name].way is Way.LOOP for name in names)
            for block, _ in rows(losses, chosen, vectorised=vectorised):
                for name, g in block.items():
                    rows_of = ExampleGradients(name, chosen[name], (Dense(wide(g)),))
                    self._reduce(rows_of, mean.get(name), [], hold)
        except Exception as failure:
            for name in names:
                self.table.gap(name, f"{type(failure).__name__}: {failure}")

    def _mean(self, losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean gradient, which blocks of rows cannot know by themselves."""
        if Projection(Direction.MEAN) not in self.statistics:
            return {}
        grads = torch.autograd.grad(
            losses, list(parameters.values()), torch.ones_like(losses), retain_graph=True, allow_unused=True
        )
        return {n: wide(g) / len(losses) for n, g in zip(parameters, grads, strict=True) if g is not None}

    def receive(self, use: Use, grads: tuple[Tensor | None, ...]) -> None:
        """Turn a layer's output gradients into parts; reduce a parameter once its last use has come."""
        names = {self._names[id(p)] for p in use.module.parameters() if id(p) in self._names}
        names = {name for name in names if self.plan.ways[name].way.by_layers}
        if use.refused is not None or not names or all(g is None for g in grads):
            return
        try:
            layouts = self._layouts(use)
            scaled = tuple(
                None if g is None else self._own(g, layout) for g, layout in zip(grads, layouts, strict=False)
            )
            for name, part in parts_of(use, scaled, self.examples, layouts, self._names, self.keep):
                if name not in names:
                    continue
                if name in self._done:
                    raise RuntimeError("used more often than when its formula was checked")
                self._parts.setdefault(name, []).append(part)
                self._sources.setdefault(name, []).append(use)
                if len(self._parts[name]) == self.plan.uses.get(name):
                    self._finish(name)
        except Exception as failure:
            for name in names:
                self.table.gap(name, f"{type(failure).__name__}: {failure}")

    def _layouts(self, use: Use) -> tuple[Layout, ...]:
        known = self.plan.layouts.get((*use.key, self._numbers.get(id(use), 0)))
        candidates = use.candidates(self.examples)
        if known is not None:
            return known
        if not candidates:
            raise RuntimeError("no axis of the layer's output can be the examples")
        return candidates[0]

    def _own(self, grad: Tensor, layout: Layout) -> Tensor:
        """Divide the objective's weights out."""
        grad = wide(grad)
        if self.weights is None:
            return grad * self.examples  # nobody told: a mean over the examples
        weights = self.weights.to(grad)
        inverse = torch.where(weights == 0, 0, 1 / weights)
        return grad * layout.expand(inverse, grad)

    def _finish(self, name: str) -> None:
        self._done.add(name)
        g = ExampleGradients(name, self.parameters[name], tuple(self._parts.pop(name)))
        self._reduce(g, None, self._sources.pop(name), bool(self.late))

    def _reduce(self, g: ExampleGradients, mean: Tensor | None, sources: list[Use], hold: bool) -> None:
        with torch.no_grad():
            if not self.plan.checked:
                self._totals[g.name] = g.total()
            for statistic in self.statistics:
                if not isinstance(statistic, Projection):
                    value = statistic.reduce(g)
                elif statistic.direction is Direction.MEAN:
                    value = statistic.reduce(g) if mean is None else g.dot(mean)
                elif g.name in self.directions[statistic.direction]:
                    value = g.dot(self.directions[statistic.direction][g.name])
                else:
                    self.table.void(statistic, f"no_last_update: {g.name} was not trained in the step before")
                    continue
                self.table.add(statistic, g.name, value, self.index)
        if hold:
            self.held.append((g.name, g, sources))

    def end(self) -> None:
        """Reduce what is still waiting: uses that no gradient reached count for nothing."""
        for name in list(self._parts):
            try:
                self._finish(name)
            except Exception as failure:
                self.table.gap(name, f"{type(failure).__name__}: {failure}")

    def confirm(self, grown: Mapping[str, Tensor]) -> None:
        """Drop what was not checked before and does not add up to the growth of ``.grad``."""
        if self.plan.checked or not grown:
            return
        for name in self.parameters:
            if self.plan.ways[name].way.by_layers and not confirmed(self._totals.get(name), grown.get(name)):
                self.table.gap(name, "its layers' formulas do not give the whole gradient")

    def project(self, statistic: Statistic, directions: Mapping[str, Tensor]) -> None:
        """Project the held gradients on a direction that is known only now."""
        for name, g, sources in self.held:
            if not all(use.intact() for use in sources):
                self.table.gap(name, "a layer's input was overwritten before the optimiser stepped")
            elif name in directions:
                with torch.no_grad():
                    self.table.add(statistic, name, g.dot(directions[name]), self.index)
