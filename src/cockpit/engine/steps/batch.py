r"""Batch: one watched backward pass, turned into statistics layer by layer and then let go.

Output gradients carry the weighting of the user's objective,
$\partial L / \partial z = w_i\, \partial \ell_i / \partial z$ with $w_i = \partial L / \partial \ell_i$: the
mean's 1/N, a sum's 1, an AMP scale, sample weights, accumulation. A hook on the losses sees $w$, and dividing
by it in this one place leaves gradients of the examples' own losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from cockpit.engine.answers.table import SEVERAL, Table
from cockpit.engine.coverage.coverage import Plan, Way, confirmed, parts_of
from cockpit.engine.coverage.fallback import rows
from cockpit.engine.coverage.spread import Spread
from cockpit.engine.gradients.bunch import Bunch
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.gradients.reduction import Directions, reductions
from cockpit.engine.layers.formula import Layout
from cockpit.engine.numbers.precision import wide
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use
from cockpit.engine.seeing.weights import Weights
from cockpit.engine.statistics import Direction, Projection, Statistic, Total
from cockpit.engine.steps.factored import Vectors
from cockpit.engine.steps.recall import Recall

HOLD = 2**29
"""How many bytes may wait for a direction that is known later (512 MiB)."""


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
        last_update: Vectors,
        late: Iterable[Statistic] = (),
        sum_of: Callable[[str], tuple[Tensor, float] | None] = lambda name: None,
        fast: bool = True,
        memory: int = HOLD,
        begun: bool = False,
        factored: bool = False,
    ) -> None:
        self.plan, self.parameters, self.table = plan, parameters, table
        self.examples = examples
        self.statistics, self.late = list(statistics), list(late)
        self.sum_of, self.fast, self.memory = sum_of, fast, memory
        self.held_bytes = 0
        """How many bytes wait for a direction that is known later."""
        self.recall = Recall(last_update, factored)
        self.held: list[tuple[str, ExampleGradients, list[Use]]] = []
        self.index = table.batches - begun
        self.keep: Tensor | None = None
        self.factor = float(examples)
        """What makes arriving gradients those of the examples' own losses; a mean's, until weights are known."""
        self.weights: Tensor | None = None
        """The weights to divide out, where they are not all the same."""
        self.numbers = {id(use): k for use, k in capture.numbered()}
        self._names = {id(p): name for name, p in parameters.items()}
        self._parts: dict[str, list[Part]] = {}
        self._sources: dict[str, list[Use]] = {}
        self._served: dict[int, int] = {}
        """How many parameters of a call are still to be reduced."""
        self._postponed: tuple[Use, tuple[Tensor | None, ...]] | None = None
        self._lets_go = not (
            capture.keep_outputs or plan.names(Way.SPREAD) or any(s.keeps for s in self.statistics)
        )
        """Whether nobody else asks a call for what it saw."""
        self._complete: list[tuple[ExampleGradients, list[Use]]] = []
        self._met: list[tuple[ExampleGradients, list[Use]]] = []
        """What is complete, but waits for the end."""
        self._coming: Callable[[str], tuple[Tensor, float] | None] | None = None
        self._done: set[str] = set()
        self._totals: dict[str, Tensor] = {}
        self._bunch = Bunch()
        if not begun:
            gaps = {name: plan.ways[name].reason for name in plan.names(Way.NONE)}
            table.begin(examples, plan.used(parameters), gaps)

    def foresee(self, coming: Callable[[str], tuple[Tensor, float] | None]) -> None:
        """Project on the coming step as soon as a gradient is summed; ``coming`` tells a parameter's from then on."""
        self._coming = coming
        self.statistics += self.late
        self.late = []

    @property
    def examples_counted(self) -> int:
        """Examples whose weight is not zero."""
        return self.examples if self.keep is None else len(self.keep)

    def weigh(self, weights: Weights, losses: Tensor | None) -> None:
        """Take note of the objective's weights; examples of weight zero do not count."""
        if weights.common is not None:
            self.factor = 1 / weights.common
            return
        self.weights = weights.values
        if losses is not None and (keep := weights.keep) is not None:
            self.keep = keep
            self.table.resize(weights.counted)
            self.serve(losses)

    def serve(self, losses: Tensor) -> None:
        """Serve the parameters that no formula knows from the live graph."""
        names = [n for n in self.parameters if self.plan.ways[n].way.by_graph]
        if not names or not (self.statistics or self.late):
            return
        chosen = {name: self.parameters[name] for name in names}
        # What has no factors would be held written out, N x D.
        needed = len(losses) * sum(p.numel() * p.element_size() for p in chosen.values())
        hold = bool(self.late) and self._fits(needed)
        losses = losses if self.keep is None else losses[self.keep]
        mean = self._mean(losses, chosen)
        try:
            vectorised = not any(self.plan.ways[name].way is Way.LOOP for name in names)
            for block, _ in rows(losses, chosen, vectorised=vectorised):
                for name, g in block.items():
                    rows_of = ExampleGradients(name, chosen[name], (Dense(wide(g)),), self.fast)
                    self.recall.project(rows_of, whole=False)
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
        """Turn a layer's output gradients into parts; reduce a parameter after its last use.

        That is when the next layer comes: by then autograd has summed the parameter's own gradient, too, and let go
        what it had saved for the layer.
        """
        self.reduce()
        if use.refused is not None or all(g is None for g in grads):
            return
        if use.formula.postponed:
            self._postponed = (use, grads)
        else:
            self._take_apart(use, grads)

    def _take_apart(self, use: Use, grads: tuple[Tensor | None, ...]) -> None:
        names = self.plan.served_by(use.module, self._names)
        if not names:
            return
        try:
            if names & self._done:
                raise RuntimeError("used more often than when its formula was checked")
            layouts = self._layouts(use)
            scaled = tuple(
                None if g is None else self._own(g, layout, isinstance(use.module, nn.Linear))
                for g, layout in zip(grads, layouts, strict=False)
            )
            for name, part in parts_of(use, scaled, self.examples, layouts, self._names, self.keep):
                if name not in names:
                    continue
                if self.weights is None:
                    part = part.scaled(self.factor)
                self._parts.setdefault(name, []).append(part)
                self._sources.setdefault(name, []).append(use)
                self._served[id(use)] = self._served.get(id(use), 0) + 1
                if len(self._parts[name]) == self.plan.uses.get(name):
                    self._completed(name)
        except Exception as failure:
            for name in names:
                self.table.gap(name, f"{type(failure).__name__}: {failure}")

    def meet(self, name: str, spread: Spread, grads: tuple[Tensor | None, ...]) -> None:
        """Take the rows that arrive where a parameter meets the examples."""
        if name in self._done or grads[0] is None:
            return
        self.reduce()
        try:
            rows = self._own(grads[0].detach(), Layout(), half=False)
            part = spread.part(name, rows, self.keep)
            self._parts[name] = [part if self.weights is not None else part.scaled(self.factor)]
            self._sources[name] = [] if spread.use is None else [spread.use]
            self._completed(name)
            if self._coming is not None:
                # These rows come before they are summed: ``.grad`` may change after the next layer's have come.
                self._met.append(self._complete.pop())
        except Exception as failure:
            self.table.gap(name, f"{type(failure).__name__}: {failure}")

    def _layouts(self, use: Use) -> tuple[Layout, ...]:
        known = self.plan.layouts.get((*use.key, self.numbers.get(id(use), 0)))
        if known is not None:
            return known
        candidates = use.candidates(self.examples)
        if not candidates:
            raise RuntimeError("no axis of the layer's output can be the examples")
        return candidates[0]

    def _own(self, grad: Tensor, layout: Layout, half: bool) -> Tensor:
        """Divide the objective's weights out; ``half`` precision may stay if nothing is rounded by that.

        Where all are the same, or nobody told of them, parts are scaled instead.
        """
        if self.weights is None:
            return grad if half and grad.dtype is torch.bfloat16 else wide(grad)
        grad = wide(grad)
        weights = self.weights.to(grad)
        inverse = torch.where(weights == 0, 0, 1 / weights)
        return grad * layout.expand(inverse, grad)

    @property
    def waiting(self) -> set[str]:
        """Parameters that are complete and not reduced yet."""
        return self._bunch.names

    def _completed(self, name: str) -> None:
        """Note that all of a parameter's gradients have come; they are reduced later."""
        self._done.add(name)
        g = ExampleGradients(name, self.parameters[name], tuple(self._parts.pop(name)), self.fast)
        self._complete.append((g, self._sources.pop(name)))
        with torch.no_grad():
            self.recall.project(g)

    def reduce(self) -> None:
        """Reduce the parameters that are complete; small ones may wait for the end."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._take_apart(*postponed)
        complete, self._complete = self._complete, []
        for g, sources in complete:
            try:
                self._reduce(g, None, sources, bool(self.late))
                self._let_go(sources)
            except Exception as failure:
                self.table.gap(g.name, f"{type(failure).__name__}: {failure}")

    def _let_go(self, sources: list[Use]) -> None:
        """Let calls go whose parameters are all reduced: their graph lives as long as the user's losses do."""
        for use in sources if self._lets_go and not self.late else ():
            self._served[id(use)] -= 1
            if not self._served[id(use)]:
                use.release()

    def _reduce(self, g: ExampleGradients, mean: Tensor | None, sources: list[Use], hold: bool) -> None:
        with torch.no_grad():
            if not self.plan.checked:
                self._totals[g.name] = g.total()
            statistics, directions, known = self._directed(g, mean)
            if sources and self._bunch.takes(g, statistics, directions):  # rows of the graph come in blocks
                statistics = []
            for statistic, value in (*known, *reductions(g, statistics, directions)):
                self.table.add(statistic, g.name, value, self.index)
            self.recall.follow(g, sources, reduced=g.name not in self.waiting)
        if hold and self.late and self._fits(sum(part.bytes for part in g.parts)):
            self.held.append((g.name, g, sources))

    def _fits(self, needed: int) -> bool:
        """Say whether so many bytes more may be held; if not, what was to wait for a direction is given up."""
        self.held_bytes += needed
        if self.held_bytes <= self.memory:
            return True
        for statistic in self.late:
            self.table.void(statistic, too_large(self.memory))
        self.late = []
        self.held.clear()
        return False

    def _directed(
        self, g: ExampleGradients, mean: Tensor | None
    ) -> tuple[list[Statistic], Directions, list[tuple[Statistic, Tensor]]]:
        """Return what is left to reduce, the directions for projections, and what is known already."""
        left: list[Statistic] = []
        directions: dict[Projection, tuple[Tensor, float]] = {}
        known: list[tuple[Statistic, Tensor]] = []
        total: Tensor | None = None
        recalled = self.recall.projected(g.name)
        for statistic in self.statistics:
            if isinstance(statistic, Total):
                total = g.total() if total is None else total
                known.append((statistic, total))
                continue
            if isinstance(statistic, Projection) and statistic.direction is Direction.MEAN:
                if mean is not None:
                    directions[statistic] = (mean, 1.0)
                elif (dots := g.dot_total()) is not None:
                    known.append((statistic, dots / g.examples))
                    continue
                elif (found := self.sum_of(g.name)) is not None:
                    directions[statistic] = (found[0], found[1] / g.examples)
                else:
                    total = g.total() if total is None else total
                    directions[statistic] = (total, 1 / max(1, g.examples))
            elif isinstance(statistic, Projection) and statistic.direction is Direction.UPDATE:
                if self._coming is None or (step := self._coming(g.name)) is None:
                    self.table.void(statistic, f"unforeseen: the optimiser did not tell the step of {g.name}")
                    continue
                directions[statistic] = step
            elif isinstance(statistic, Projection):
                if recalled is not None:
                    known.append((statistic, recalled))
                    continue
                if (step := self.recall.direction(g.name)) is None:
                    unknown = f"no_last_update: the step before is not known of {g.name}"
                    self.table.void(statistic, SEVERAL if self.index else unknown)
                    continue
                directions[statistic] = step
            left.append(statistic)
        return left, directions, known

    def end(self) -> None:
        """Reduce what is still waiting: uses that no gradient reached count for nothing."""
        self.reduce()
        for name in list(self._parts):
            try:
                self._completed(name)
            except Exception as failure:
                self.table.gap(name, f"{type(failure).__name__}: {failure}")
        self._complete += self._met
        self.reduce()
        self._reduce_bunch()

    def _reduce_bunch(self) -> None:
        with torch.no_grad():
            for name, statistic, value in self._bunch.reductions():
                self.table.add(statistic, name, value, self.index)

    def confirm(self, grown: Mapping[str, Tensor]) -> None:
        """Drop what was not checked before and does not add up to the growth of ``.grad``."""
        if self.plan.checked or not grown:
            return
        for name in self.parameters:
            if self.plan.ways[name].way.by_layers and not confirmed(self._totals.get(name), grown.get(name)):
                self.table.gap(name, "its layers' formulas do not give the whole gradient")

    def project(self, statistic: Statistic, directions: Mapping[str, tuple[Tensor, float]]) -> None:
        """Project the held gradients on a direction that is known only now."""
        for name, g, sources in self.held:
            if not all(use.intact() for use in sources):
                self.table.gap(name, "a layer's input was overwritten before the optimiser stepped")
            elif name in directions and not (
                isinstance(statistic, Projection)
                and self._bunch.takes(g, [statistic], {statistic: directions[name]})
            ):
                vector, factor = directions[name]
                with torch.no_grad():
                    self.table.add(statistic, name, g.dot(vector) * factor, self.index)
        self._reduce_bunch()


def too_large(memory: int) -> str:
    """Say why what waits for a direction is given up."""
    text = (
        f"too_large: more than {memory / 2**20:.0f} MiB would have to be kept until the optimiser has moved"
    )
    return f"{text}; Cockpit(memory=…) allows more"
