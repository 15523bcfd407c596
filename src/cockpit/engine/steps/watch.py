"""Watch: how the backward pass of a micro-batch is watched, by a `Batch` as it comes or by replaying a recording."""

from __future__ import annotations

from functools import partial
from math import isclose
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from cockpit.engine.answers.requests import LAST, MEAN, UPDATE, Requests
from cockpit.engine.answers.table import Table
from cockpit.engine.coverage.coverage import Plan, Way
from cockpit.engine.coverage.spread import Spread, spreads
from cockpit.engine.needs import Known
from cockpit.engine.numbers.precision import without_autocast
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use
from cockpit.engine.seeing.weights import Weights
from cockpit.engine.statistics import Statistic, Total
from cockpit.engine.steps.batch import HOLD, Batch
from cockpit.engine.steps.motion import Motion
from cockpit.engine.steps.step import Step
from cockpit.engine.tapes.recording import Grads
from cockpit.engine.tapes.replay import Replay
from cockpit.engine.tapes.tape import Asked, Tape
from cockpit.engine.tapes.tapes import Tapes

SMALL = 2**26
"""How many bytes may always be kept on a device for the step; more than that up to an eighth of what is allocated."""

ROUNDING = 2.0**-22
"""How far weights may be apart for being the same, relatively: 1/N rounded to float32 is 1/N."""


class Watch:
    """Watches the backward passes of one model.

    Args:
        capture: the model's layers.
        motion: the steps of its optimiser.
        device: where it is.
        fast: whether shortcuts may be taken.
        memory: how many bytes may be kept from a pass until the optimiser has moved; None: a share of what is used.
    """

    def __init__(
        self, capture: Capture, motion: Motion, device: torch.device, fast: bool, memory: int | None
    ) -> None:
        self.capture, self.motion, self.fast = capture, motion, fast
        self.tapes = Tapes(capture, device)
        self.batch: Batch | None = None
        """What reduces the present pass as it comes."""
        self._device, self._memory, self._fixed = device, memory, memory is not None
        self._kind: Any = None
        self._share: float | None = None
        """The weight of each example times their number, last time that weights were told (None: they differed)."""
        self._asked: Asked | None = None
        self._handles: list[RemovableHandle] = []
        self._foresees = False
        """Whether a step that comes may be told, rather than waited for."""
        self.held = 0
        """How many bytes were held for the step when it was waited for the last time."""

    def close(self) -> None:
        """Forget everything."""
        self.tapes.forget()
        self._kind = self._asked = None

    @property
    def memory(self) -> int:
        """How many bytes may be kept from a backward pass until the optimiser has moved."""
        if self._memory is None:  # what we keep ourselves must not count from then on
            # (When a backward pass begins, about as much is allocated as ever; the peak may be of something else.)
            cuda = self._device.type == "cuda"
            self._memory = max(SMALL, torch.cuda.memory_allocated(self._device) // 8) if cuda else HOLD
        return self._memory

    def open(
        self,
        step: Step,
        asked: Requests,
        plan: Plan,
        uses: list[Use],
        losses: Tensor | None,
        examples: int,
        alone: bool,
    ) -> None:
        """Prepare for a pass; ``alone``: neither another micro-batch nor another process is expected."""
        simple = alone and self._simple(step, asked)
        if simple and self._replays(step, asked, plan, uses, losses, examples):
            return
        # What will be replayed, with the step taken, has the same numbers until then.
        self._foresees = not (simple and self.tapes.expects(self._kind))
        self._reduce(step, asked, plan, losses, examples, alone)

    def _replays(
        self, step: Step, asked: Requests, plan: Plan, uses: list[Use], losses: Tensor | None, examples: int
    ) -> bool:
        """Prepare to replay a pass, or at least to record it; return whether it is replayed."""
        last = self.motion.recalled()
        if asked.recalls and not last:
            return False
        weight = (self._share if step.losses and not step.own and self._share else 1) / examples
        shapes = tuple([(use.name, *[x.shape for x in use.inputs]) for use in uses])
        self._kind = (id(plan), asked.needs, shapes, bool(step.losses), step.own, weight, step.plain)
        step.replay = self.tapes.begin(self._kind, last, partial(self._loose, step, losses))
        if step.replay is not None:
            self._asked = step.replay.tape.asked
            step.last_factors = {name: factor for name, (_, factor) in last.items()}
            step.table.begin(examples, self._asked.used, {})
            return True
        of_step = Asked(asked.statistics, step.parameters, plan, examples, step.own, weight, step.plain)
        numbers, self._asked = {id(use): k for use, k in self.capture.numbered()}, of_step
        step.recording = self.tapes.begin_recording(
            self._kind, of_step, uses, numbers, self.memory, self._fixed
        )
        return False

    def _simple(self, step: Step, asked: Requests) -> bool:
        """Say whether the step may be replayed: weights all the same, gradients new, nothing asked for but numbers."""
        if not self.fast or (step.losses and not step.own and self._share is None):
            return False
        if step.entered > 1 or not step.fresh or not Recorder.serves(self._device):
            return False
        return not asked.vectors and not asked.keeps

    def _reduce(
        self,
        step: Step,
        asked: Requests,
        plan: Plan,
        losses: Tensor | None,
        examples: int,
        alone: bool,
        begun: bool = False,
    ) -> None:
        step.immediate = alone
        waits: set[Statistic] = set() if alone else {MEAN}
        if not step.plain:
            waits |= {UPDATE}
        left_out = waits | ({UPDATE} if step.plain else set()) | ({Total()} if step.own else set())
        now = [s for s in asked.individual if s not in left_out]
        # The coming step may be needed for projections only: a CPU then keeps its factors, a GPU a recording.
        only_slopes = UPDATE in asked.needs and Known.UPDATES not in asked.needs
        self.batch = Batch(
            self.capture,
            plan,
            step.parameters,
            examples,
            step.table,
            now,
            self.motion.recalled() if LAST in now else {},
            [s for s in asked.individual if s in waits],
            step.accumulated.sum_of if step.own else _unknown,
            self.fast,
            self.memory,
            begun,
            only_slopes and step.plain and self._device.type == "cpu",
        )
        step.batches.append(self.batch)
        if step.own:
            self._foresee(step)
        if losses is not None:
            self.batch.serve(losses)

    def _loose(self, step: Step, losses: Tensor | None, tape: Tape) -> Batch:
        """Return what evaluates the parameters that a recording does not."""
        parameters = {name: p for name, p in step.parameters.items() if name in tape.loose}
        batch = Batch(
            self.capture,
            tape.asked.plan,
            parameters,
            tape.asked.examples,
            Table(parameters),
            tape.asked.individual,
            {name: (place, 1.0) for name, place in tape.last.items()},
            [] if tape.cut else tape.asked.late,
            step.accumulated.sum_of,
            self.fast,
            self.memory,
        )
        if losses is not None:
            batch.serve(losses)
        return batch

    def listen(self, step: Step, losses: Tensor | None, early: list[tuple[Use, Grads]]) -> None:
        """Receive output gradients until `hush`; some may have come before."""
        meeting = self.batch
        if step.replay is not None and step.replay.loose is not None:
            meeting = step.replay.loose.batch
        if meeting is None and step.replay is None:
            return
        for use, grads in early:
            self._receive(step, use, grads)
        if meeting is not None and losses is not None:
            self._handles = self._meeting(meeting, losses)
        self.capture.receiver = partial(self._receive, step)

    def hush(self) -> None:
        """Receive nothing any more."""
        self.capture.receiver = None
        while self._handles:
            self._handles.pop().remove()

    def _receive(self, step: Step, use: Use, grads: Grads) -> None:
        """Take a call's output gradients."""
        if step.replay is not None and not step.replay.lost:  # it is only kept
            step.replay.receive(use, grads)
            return
        with without_autocast(self._device.type):
            if step.replay is not None:
                step.replay.receive(use, grads)
            elif self.batch is not None:
                if step.recording is not None:
                    step.recording.notice(use, grads)
                self.batch.receive(use, grads)

    def weigh(self, step: Step, asked: Requests, plan: Plan, weights: Weights, losses: Tensor) -> None:
        """Take note of the objective's weights, before any gradient arrives."""
        examples, common = len(losses), weights.common
        self._share = None if common is None else common * examples
        if self._share is not None and isclose(self._share, 1, rel_tol=ROUNDING):
            self._share = 1.0
        expected = None if self._asked is None else self._asked.weight
        if common is None or expected is None or not isclose(common, expected, rel_tol=ROUNDING):
            replay, step.replay, step.recording = step.replay, None, None
            if replay is not None and replay.loose is not None:
                raise RuntimeError("the weights of the examples are others than when the step was recorded")
            if replay is not None:
                self._reduce(step, asked, plan, losses, examples, alone=True, begun=True)
        if self.batch is not None:
            self.batch.weigh(weights, losses)
            # A loss scaler divides gradients later, where no version tells of it.
            if self._share == 1:
                self._foresee(step)

    def _foresee(self, step: Step) -> None:
        """Have the coming step told from gradients as they come, where it would be waited for, holding them."""
        batch = self.batch
        if batch is None or not (self._foresees and self.fast and step.immediate and UPDATE in batch.late):
            return
        # Of linear layers and few examples, less is held than the step of one parameter takes.
        if self.held <= max(p.numel() * p.element_size() for p in step.parameters.values()):
            return
        if not batch.plan.names(Way.VMAP, Way.LOOP):  # whose rows come before there is a gradient
            step.foresight = self.motion.foresight(step.parameters)
        if step.foresight is not None:
            batch.foresee(step.foresight.coming)

    def _meeting(self, batch: Batch, losses: Tensor) -> list[RemovableHandle]:
        """Listen where parameters without an example axis meet the examples."""
        names = batch.plan.names(Way.SPREAD)
        if not names:
            return []
        parameters = {name: batch.parameters[name] for name in names}
        found = spreads(losses, parameters, self.capture.uses(), batch.plan.paths)
        for name in names:
            if name not in found:
                batch.table.gap(name, "it meets the examples in another way than when that was checked")
        return [s.node.register_prehook(partial(self._met, batch, n, s)) for n, s in found.items()]

    def _met(self, batch: Batch, name: str, spread: Spread, grads: Grads) -> None:
        if self.capture.listening:
            batch.meet(name, spread, grads)

    def record(self, step: Step) -> None:
        """Record a step that was noted."""
        if step.recording is not None and self._asked is not None:
            losses = step.losses[-1] if step.losses else None
            self.tapes.record(self._kind, self._asked, step.recording, losses)

    def end_replay(self, step: Step, replay: Replay, asked: Requests, plan: Plan) -> bool:
        """End a replay; where it has failed, go the ordinary way with what was received, and return False.

        If some of that was let go already, the step is spoiled.
        """
        try:
            replay.end(step.losses[-1] if step.losses else None)
            return True
        except Exception as failure:
            self.tapes.give_up(failure)
        step.replay = None
        if replay.lost:
            step.spoiled = True
            return True
        self._reduce(step, asked, plan, None, replay.tape.asked.examples, alone=True, begun=True)
        assert self.batch is not None
        for use, grads in replay.received:
            self.batch.receive(use, grads)
        return False


def _unknown(name: str) -> None:
    """Say that a parameter's summed gradient is not known from ``.grad``."""
