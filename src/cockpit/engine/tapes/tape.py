r"""Tape: the evaluation of a step, recorded once and replayed at the next ones in a few launches.

The evaluation of a step is the same sequence of kernels every time, and for small models launching them takes far
longer than running them; for large ones the host takes longer to say what is to be done than the device to do it.
Everything whose address changes from step to step (layers' inputs, output gradients, ``.grad``, losses) is copied to
fixed places (`cockpit.engine.tapes.recording`), from which CUDA graphs read it. Parameters lie where they lay.

Only the simplest kinds of step are replayed: one micro-batch, one process, gradients cleared before, and the objective
the mean of the losses (then ``.grad`` is the mean gradient) or one of which nothing is known. Anything else, and
anything that cannot be captured, goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from cockpit.engine.answers.reel import Layout, Reel
from cockpit.engine.answers.requests import GRADIENTS, LAST, UPDATE, UPDATES
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Arriving, Packed, Transfer, packed
from cockpit.engine.coverage.coverage import Plan
from cockpit.engine.derived import Derived, Folded, MeanNorm2, Separation, is_curved
from cockpit.engine.gradients.histograms import Histogram
from cockpit.engine.numbers.lengths import squared_lengths
from cockpit.engine.numbers.precision import wide
from cockpit.engine.scripts.copying import Copier, copy_all
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.statistics import Quantiles, Statistic, Total
from cockpit.engine.steps.batch import Batch
from cockpit.engine.tapes.recording import Recording, Segment, live


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of a step that may be recorded."""

    statistics: Sequence[Statistic]
    parameters: Mapping[str, Tensor]
    plan: Plan
    examples: int
    own: bool
    """Whether ``.grad`` holds the mean of the examples' gradients and nothing else."""
    weight: float
    """Of every example in the objective."""
    plain: bool
    """Whether the update is a multiple of the gradient, so that nothing is left to do when the optimiser has moved."""

    @property
    def mean(self) -> bool:
        """Whether the objective is a mean over the examples."""
        return self.weight == 1 / self.examples

    @property
    def possible(self) -> bool:
        """Whether such a step may be recorded at all."""
        device = next(iter(self.parameters.values())).device
        if not Recorder.serves(device) or not self.plan.checked:
            return False
        return not any(
            isinstance(s, Quantiles) for s in self.statistics
        )  # which pick elements by their values

    @cached_property
    def eager(self) -> list[Statistic]:
        """What is left to the ordinary way: curvature, and what is derived from it."""
        return [s for s in self.statistics if is_curved(s)]

    @cached_property
    def recorded(self) -> list[Statistic]:
        """What comes from the recording."""
        return [s for s in self.statistics if not is_curved(s)]

    @cached_property
    def individual(self) -> list[Statistic]:
        """What is reduced from individual gradients as they come."""
        other = (UPDATE, Total()) if self.own else (UPDATE,)  # the sum is known from ``.grad``
        return [s for s in self.recorded if s.individual and not isinstance(s, Folded) and s not in other]

    @cached_property
    def recalls(self) -> bool:
        """Whether individual gradients are projected on the step before."""
        return LAST in self.statistics

    @cached_property
    def steps(self) -> bool:
        """Whether individual gradients are projected on the step taken."""
        return UPDATE in self.statistics

    @cached_property
    def used(self) -> list[str]:
        """The parameters that take part."""
        return self.plan.used(self.parameters)

    @cached_property
    def late(self) -> list[Statistic]:
        """What waits until the optimiser has moved."""
        return [UPDATE] if self.steps and not self.plain else []

    @cached_property
    def sums(self) -> bool:
        """Whether sums of gradients, as large as the parameters, are to be taken from ``.grad``."""
        if not self.own:
            return False
        derived = [s for s in self.statistics if isinstance(s, Derived) and not isinstance(s, MeanNorm2)]
        return any(Total() in s.sources for s in derived)

    @cached_property
    def moves(self) -> bool:
        """Whether the step taken is wanted in some form."""
        return bool({UPDATE, UPDATES} & set(self.statistics))

    @cached_property
    def remembers(self) -> bool:
        """Whether the step before, or the parameters before the step, have to be kept."""
        return self.moves or self.recalls

    def lengths(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the squared lengths of mean gradients, from what stands in ``.grad``."""
        found = squared_lengths(list(gradients.values()))
        factor = 1.0 if self.mean else (self.weight * self.examples) ** -2
        return {n: x if factor == 1 else x * factor for n, x in zip(gradients, found, strict=True)}

    def fold(self, table: Table, lengths: Mapping[str, Tensor]) -> None:
        """Enter the mean gradient's squared lengths, and what is derived from statistics that are joined."""
        for s in self.recorded:
            if isinstance(s, MeanNorm2) and self.own:
                table.enter(s, lengths)
            elif isinstance(s, Derived):
                table.derive(s, self.examples)
            elif s == GRADIENTS:
                table.enter(s, lengths, everywhere=True)


class Tape:
    """One recorded step; ``last`` are the places where the step before is kept, shared by all tapes of a model."""

    def __init__(
        self,
        asked: Asked,
        capture: Capture,
        recording: Recording,
        losses: Tensor | None,
        last: dict[str, Tensor],
        recorder: Recorder,
    ) -> None:
        self.asked, self.last, self.order = asked, last, recording.order
        self.segments, self.loose = recording.segments, recording.loose
        self.names = [name for name, *_ in self.order]
        """The layers of calls as their output gradients come."""
        self.cut = not recording.whole
        """Whether segments share their places, so that nothing of them is left when the optimiser moves."""
        self.addresses = [p.data_ptr() for p in asked.parameters.values()]
        device = next(iter(asked.parameters.values())).device
        self.constants = [s.constants(device) for s in asked.statistics if isinstance(s, Histogram)]
        self.losses = None if losses is None else torch.empty_like(losses)
        first = self.segments[0]
        whole = [] if self.cut else [*live(first.calls), *first.names.values()]
        self.calls = [[live([call]) for call in s.calls] for s in self.segments if self.cut]
        """The places of each call, where segments share them."""
        parameters = {n: p for n, p in asked.parameters.items() if n not in self.loose}
        self.table = Table(parameters)
        self._batch = Batch(
            capture,
            asked.plan,
            parameters,
            asked.examples,
            self.table,
            asked.individual,
            {name: (place, 1.0) for name, place in last.items()},
            [] if self.cut else asked.late,
            self._sum_of,
        )
        self._batch.factor = 1 / asked.weight
        self._batch.numbers = {
            id(use): k for s in self.segments for (use, _), k in zip(s.calls, s.numbers, strict=True)
        }
        self._lengths: dict[str, Tensor] = {}
        self.segment_replays: list[Callable[[], None]] = []
        if self.cut:
            self.segment_replays = [recorder.record(partial(self._evaluate, s))[0] for s in self.segments]
        self.end = Reel(recorder, self._ended)
        self.after = Reel(recorder, self._moved) if asked.moves and not asked.plain else None
        places = [*([] if self.losses is None else [self.losses]), *whole]
        # What is read once only, while it is there, need not be copied.
        feeds = [self.end.feed(p) for p in places] if self.after is None and not self.cut else []
        self.copier = Copier(places, feeds)
        """To the places of losses, and of the only segment where there is one."""

    def _sum_of(self, name: str) -> tuple[Tensor, float] | None:
        if not self.asked.own:
            return None
        place = next(s.names[name] for s in self.segments if name in s.names)
        return wide(place), float(self.asked.examples)

    def _evaluate(self, segment: Segment) -> None:
        """Evaluate what is known when a segment is complete."""
        for use, grads in segment.calls:
            self._batch.receive(use, grads)
        self._batch.reduce()
        gradients = {name: wide(place) for name, place in segment.names.items()}
        self._lengths.update(self.asked.lengths(gradients))
        if self.asked.sums:
            for name, gradient in gradients.items():
                self.table.add(Total(), name, gradient * self.asked.examples)
        if self.cut:  # their places are used again; parameters that wait have their own
            self._remember(segment, [name for name in gradients if name not in self._batch.waiting])

    def _remember(self, segment: Segment, names: Sequence[str]) -> None:
        """Keep the gradient, of which the coming step is a multiple."""
        if self.asked.plain and self.asked.steps and names:
            copy_all([self.last[name] for name in names], [segment.names[name] for name in names])

    def _ended(self) -> tuple[Layout, Packed]:
        """Evaluate everything that is known before the optimiser moves."""
        a, table = self.asked, self.table
        if not self.cut:
            self._evaluate(self.segments[0])
        waiting = set(self._batch.waiting)
        self._batch.end()
        table.close([*self._batch.statistics, *([Total()] if a.sums else [])])
        if set(table.covered) != table.used:
            raise RuntimeError(f"a layer's formula failed: {table.gaps}")
        if without := [name for name in table.parameters if name not in self._lengths]:
            zero = torch.zeros_like(next(iter(self._lengths.values())))
            self._lengths.update(dict.fromkeys(without, zero))
        a.fold(table, {name: self._lengths[name] for name in table.parameters})
        for s in a.recorded:
            if isinstance(s, Separation):
                names = [name for name in a.parameters if name in s.origin]
                now = [a.parameters[name].detach() for name in names]
                lengths = squared_lengths(now, [s.origin[name] for name in names])
                table.enter(s, dict(zip(names, lengths, strict=True)), everywhere=True)
        for segment in self.segments:
            self._remember(segment, [n for n in segment.names if n in waiting or not self.cut])
        if a.moves and not a.plain:  # the parameters before the step
            now = [p.detach() for p in a.parameters.values()]
            copy_all([self.last[name] for name in a.parameters], now)
        return numbers_of(table, [] if self.losses is None else [self.losses])

    def _moved(self) -> tuple[Layout, Packed]:
        """Evaluate what needs the step taken: `last` held the parameters before it, and holds the step from then on."""
        a = self.asked
        updates = {name: self.last[name] for name in a.parameters}
        torch._foreach_sub_(list(updates.values()), [p.detach() for p in a.parameters.values()])
        torch._foreach_neg_(list(updates.values()))
        self.table.forget([UPDATE, UPDATES])
        known = set(self.table.entered)
        if UPDATES in a.statistics:
            lengths = squared_lengths(list(updates.values()))
            self.table.enter(UPDATES, dict(zip(updates, lengths, strict=True)), everywhere=True)
        if UPDATE in self._batch.late:
            self._batch.project(UPDATE, {name: (u, 1.0) for name, u in updates.items()})
            self.table.close([UPDATE])
        return numbers_of(self.table, known=known)

    @property
    def in_place(self) -> bool:
        """Whether the parameters lie where they lay when they were recorded."""
        return self.addresses == [p.data_ptr() for p in self.asked.parameters.values()]

    def finish(self) -> tuple[Layout, Arriving] | None:
        """Evaluate what needs the step taken."""
        if self.after is None:
            return None
        if self.in_place:
            return self.after.layout, self.after.replay()
        for segment in self.segments:  # each run wrote into their places
            for use, _ in segment.calls:
                use.renew()
        with torch.no_grad():  # moved since the backward pass: the recording would read their old places
            layout, pack = self._moved()
            return layout, Transfer(pack)


def numbers_of(
    table: Table, more: Sequence[Tensor] = (), known: Collection[Statistic] = ()
) -> tuple[Layout, Packed]:
    """Return the small numbers of a table, without those known already, and more of them."""
    numbers = [entry for entry in table.numbers() if entry[0] not in known]
    tensors = [t for _, _, values in numbers for t in values]
    return [(s, names) for s, names, _ in numbers], packed([*tensors, *more])
