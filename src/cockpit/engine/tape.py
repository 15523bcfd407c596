"""Tape: a step's statistics recorded once as a CUDA graph and replayed from then on.

Small models leave a GPU idle between launches, and every statistic is some launches more. So once the same step has
been seen a few times, its whole evaluation, written as for any device, is captured into a CUDA graph: a watched step
then copies the layers' inputs and output gradients into fixed places and launches one graph, whatever the number of
layers. What is recorded is the ordinary evaluation (`Batch`, `Table`), so the numbers are the same.

Used where everything comes from layer formulas in one micro-batch of one process, objective our own, and the copies
fit into ``LIMIT``; anything else, and anything that cannot be captured, goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.batch import Batch
from cockpit.engine.capture import Capture, Use
from cockpit.engine.coverage import Plan, Way
from cockpit.engine.derived import Derived, Folded, MeanNorm2, Separation, is_curved, squared_lengths
from cockpit.engine.histograms import Histogram
from cockpit.engine.requests import GRADIENTS, UPDATE, UPDATES
from cockpit.engine.statistics import Quantiles, Statistic, Total
from cockpit.engine.table import Table
from cockpit.engine.transfer import Packed, packed

LIMIT = 64 * 2**20
"""How many bytes of inputs and output gradients may be copied for a step."""
REPEATS = 2
"""How often a step must have come before it is recorded."""

Received = Sequence[tuple[Use, tuple[Tensor | None, ...]]]
Layout = list[tuple[Statistic, tuple[str, ...]]]
"""Which statistics of which parameters are packed, in order."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of a step that may be recorded."""

    statistics: Sequence[Statistic]
    parameters: Mapping[str, Tensor]
    plan: Plan
    examples: int
    plain: bool
    """Whether the update is a multiple of the gradient, so that nothing is left to do when the optimiser has moved."""

    @property
    def possible(self) -> bool:
        """Whether such a step may be recorded at all."""
        if next(iter(self.parameters.values())).device.type != "cuda" or not self.plan.checked:
            return False
        if any(isinstance(s, Quantiles) for s in self.statistics):  # picks elements by their values
            return False
        return not any(c.way.past_layers or c.way is Way.NONE for c in self.plan.ways.values())

    @property
    def eager(self) -> list[Statistic]:
        """What is left to the ordinary way: curvature, and what is derived from it."""
        return [s for s in self.statistics if is_curved(s)]

    @property
    def recorded(self) -> list[Statistic]:
        """What comes from the recording."""
        return [s for s in self.statistics if not is_curved(s)]


class Tape:
    """One recorded step; ``last`` are the places where the step before is kept, shared by all tapes of a model."""

    def __init__(
        self, asked: Asked, capture: Capture, received: Received, losses: Tensor, last: dict[str, Tensor]
    ):
        self.asked, self.last = asked, last
        device = losses.device
        self._constants = [s.constants(device) for s in asked.statistics if isinstance(s, Histogram)]
        self.addresses = [p.data_ptr() for p in asked.parameters.values()]
        live = self._live(received, losses)
        if sum(t.numel() * t.element_size() for t in live) > LIMIT:
            raise ValueError("more than may be copied")
        self._places = [torch.empty_like(t, memory_format=torch.preserve_format) for t in live]
        kinds: dict[torch.dtype, list[int]] = {}
        for k, t in enumerate(live):
            kinds.setdefault(t.dtype, []).append(k)
        self._groups = list(kinds.values())
        numbers = {id(use): k for use, k in capture.numbered()}
        places, moved = iter(self._places), []
        for use, grads in received:
            there = use.at([next(places) for _ in use.inputs])
            moved.append((there, tuple(None if g is None else next(places) for g in grads)))
            numbers[id(there)] = numbers[id(use)]
        self._uses = [use for use, _ in moved]
        self._batch = self._new_batch(capture, numbers)
        self.graph, self.after = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            for use, grads in moved:
                self._batch.receive(use, grads)
            self._batch.end()
            self.layout, self.pack = self._evaluated(self._places[-1])
        self.after_layout: Layout = []
        self.after_pack: Packed | None = None
        if not asked.plain and self._moves:
            with (
                torch.no_grad(),
                torch.cuda.graph(self.after, self.graph.pool(), capture_error_mode="thread_local"),
            ):
                self.after_layout, self.after_pack = self._evaluated_after()

    @property
    def _moves(self) -> bool:
        return bool({UPDATE, UPDATES} & set(self.asked.statistics))

    def _new_batch(self, capture: Capture, numbers: dict[int, int]) -> Batch:
        a = self.asked
        late = [] if a.plain or UPDATE not in a.statistics else [UPDATE]
        now = [
            s
            for s in a.recorded
            if s.individual and not isinstance(s, Folded) and s is not UPDATE and s != UPDATE
        ]
        now = now if Total() in now else [*now, Total()]
        self.table = Table(a.parameters)
        last = {name: (place, 1.0) for name, place in self.last.items()}
        batch = Batch(capture, a.plan, a.parameters, a.examples, self.table, now, last, late)
        batch.numbers = numbers
        return batch

    def _evaluated(self, losses: Tensor) -> tuple[Layout, Packed]:
        """Evaluate everything that is known before the optimiser moves."""
        a, table, n = self.asked, self.table, self.asked.examples
        table.close(self._batch.statistics)
        if set(table.covered) != table.used:
            raise RuntimeError("a layer's formula failed")
        totals = table.by_parameter(Total())
        squares = dict(zip(totals, squared_lengths(list(totals.values())), strict=True))
        mean2 = {name: x / n**2 for name, x in squares.items()}
        zero = torch.zeros_like(next(iter(mean2.values())))
        for s in a.recorded:
            if isinstance(s, MeanNorm2):
                table.enter(s, mean2)
            elif isinstance(s, Derived):
                table.derive(s, n)
            elif s == GRADIENTS:
                table.enter(s, {name: mean2.get(name, zero) for name in a.parameters}, everywhere=True)
            elif isinstance(s, Separation):
                names = [name for name in a.parameters if name in s.origin]
                now = [a.parameters[name].detach() for name in names]
                lengths = squared_lengths(now, [s.origin[name] for name in names])
                table.enter(s, dict(zip(names, lengths, strict=True)), everywhere=True)
        if self._moves:
            names, values = (list(totals), list(totals.values())) if a.plain else (list(a.parameters), [])
            if not a.plain:
                values = [p.detach() for p in a.parameters.values()]  # kept until the optimiser has moved
            torch._foreach_copy_([self.last[name] for name in names], values)
        return self._packed([losses])

    def _evaluated_after(self) -> tuple[Layout, Packed]:
        """Evaluate what needs the step taken: `last` held the parameters before it, and holds the step from then on."""
        a = self.asked
        before = [self.last[name] for name in a.parameters]
        now = [p.detach() for p in a.parameters.values()]
        updates = dict(zip(a.parameters, torch._foreach_sub(now, before), strict=True))
        self.table.forget([UPDATE, UPDATES])
        known = set(self.table.entered)
        if UPDATES in a.statistics:
            lengths = squared_lengths(list(updates.values()))
            self.table.enter(UPDATES, dict(zip(updates, lengths, strict=True)), everywhere=True)
        if UPDATE in a.statistics:
            self._batch.project(UPDATE, {name: (u, 1.0) for name, u in updates.items()})
            self.table.close([UPDATE])
        torch._foreach_copy_(before, list(updates.values()))
        return self._packed([], known)

    def _packed(self, more: list[Tensor], known: set[Statistic] | None = None) -> tuple[Layout, Packed]:
        numbers = [entry for entry in self.table.numbers() if entry[0] not in (known or ())]
        tensors = [t for _, _, values in numbers for t in values]
        return [(s, names) for s, names, _ in numbers], packed([*tensors, *more])

    def _live(self, received: Received, losses: Tensor) -> list[Tensor]:
        tensors = [t for use, grads in received for t in (*use.inputs, *(g for g in grads if g is not None))]
        return [*tensors, losses]

    @property
    def in_place(self) -> bool:
        """Whether the parameters lie where they lay when they were recorded."""
        return self.addresses == [p.data_ptr() for p in self.asked.parameters.values()]

    def finish(self) -> tuple[Layout, Packed | None]:
        """Evaluate what needs the step taken."""
        if self.after_pack is None or self.in_place:
            if self.after_pack is not None:
                self.after.replay()
            return self.after_layout, self.after_pack
        for use in self._uses:  # each run wrote into their places
            use.renew()
        with torch.no_grad():  # moved since the backward pass: the recording would read their old places
            return self._evaluated_after()

    def run(self, received: Received, losses: Tensor) -> None:
        """Evaluate a step; its tensors are copied into their places."""
        live = self._live(received, losses)
        if [t.shape for t in live] != [t.shape for t in self._places]:
            raise RuntimeError("the backward pass took another way than when it was recorded")
        for members in self._groups:
            torch._foreach_copy_([self._places[k] for k in members], [live[k] for k in members])
        self.graph.replay()
