"""Measurement: what the built-in quantities of one cockpit see of its steps.

A step goes through the engine while its ``with`` block is open. Quantities that look at the update (Alpha,
UpdateSize) wait for the next block, before which the parameters have moved.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from cockpit.engine.derived import is_curved
from cockpit.engine.engine import Engine
from cockpit.engine.needs import Known, Need
from cockpit.engine.statistics import Statistic
from cockpit.legacy.context import Frame
from cockpit.legacy.extension import Chosen
from cockpit.legacy.losses import individual_losses, stand_ins, values
from cockpit.legacy.observation import HERE, LATE, THERE, Waiting, observation, read
from cockpit.legacy.quantities.measured import Measured
from cockpit.legacy.slopes import Held
from cockpit.quantities.quantity import Observation


class Measurement:
    """Runs the engine for one cockpit; every step is one batch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.chosen = Chosen(parameters)
        self.engine = Engine(self.chosen)
        self.engine.passes.usual_batches = 1
        self._waiting: Waiting | None = None
        self._due: list[Measured] = []
        self._following: Observation | None = None
        self._held = Held()
        self._blind: bool | None = None
        weakref.finalize(self, self.engine.close).atexit = False

    def prepare(self, quantities: Iterable[Measured]) -> None:
        """Listen to coming forward passes if some quantity may need them: the next step is not known yet."""
        needs = {need for q in quantities for need in q.source.request(q.memory, 0)}
        if any(isinstance(need, Statistic) for need in needs):
            self.engine.capture.arm()
            curved = any(map(is_curved, needs))
            self.engine.capture.keep_outputs = curved or self._blind is not False

    def enter(self, frame: Frame, quantities: Sequence[Measured]) -> None:
        """Begin a step, before its backward pass."""
        parameters = dict(self.chosen.named_parameters())
        for q in quantities:
            q.start(parameters)
        self._due = [q for q in quantities if q.due(frame.step)]
        self._following = None
        needs = {need for q in self._due for need in q.source.request(q.memory, frame.step)}
        self.engine.motion.remember({})
        if self._waiting is not None and self._waiting.observation.step == frame.step - 1:
            with self._guarded("measuring the update"):
                self._following = self._waiting.moved(parameters)
                updates = self._following[Known.UPDATES]
                self.engine.motion.remember({n: (u, 1.0) for n, u in updates.items()})
                needs |= {need for q in self._waiting.quantities for need in q.source.needs_after}
        losses = self._losses(frame, needs)
        if HERE in needs:
            self._held = Held()
            needs |= {self._held}
        if needs & LATE:
            needs = (needs - LATE) | {Known.PARAMETERS}
        if not needs:
            return
        with self._guarded("preparing the step"):
            self.engine.begin(frozenset(needs))
            self.engine.enter(losses)

    def leave(self, frame: Frame) -> None:
        """Read the step after its backward pass; the readings go to the frame."""
        uses = self.engine.capture.uses()
        observed = None
        with self._guarded("reading the step"):
            self.engine.leave()
            self.engine.before_update()
            observed = self.engine.finish(moved=False)
            if observed is not None:
                observed.settle()
        self.engine.capture.forget()
        now = None if observed is None else observation(frame, observed, self.chosen)
        if now is not None and self._blind and (handed_in := values(frame.info)) is not None:
            now = replace(now, known={**now.known, Known.LOSSES: handed_in})
        before, self._waiting = self._waiting, None
        if before is not None and self._following is not None:
            for q in before.quantities:
                if now is not None or not q.source.needs_after:
                    read(q, replace(self._following, memory=q.memory, following=now), frame)
        if now is None:
            return
        late = [q for q in self._due if LATE & set(q.source.needs)]
        for q in self._due:
            if q not in late:
                read(q, replace(now, memory=q.memory), frame)
        if late:
            self._held.guard(uses)
            self._waiting = Waiting(now, late, self._held)

    def abandon(self) -> None:
        """Give up a step whose block was left by an exception."""
        self.engine.abandon()

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Do not listen inside the block: the backward passes there are somebody else's."""
        with self.engine.capture.receive(None):
            yield

    def _losses(self, frame: Frame, needs: set[Need]) -> Tensor:
        """Return losses for the engine."""
        loss: Tensor = frame.get("loss")
        if Known.LOSSES not in needs and not any(isinstance(need, Statistic) for need in needs):
            return loss.reshape(1) * 1  # the objective's own gradient and Hessian ask for nothing more
        losses = None
        with self._guarded("finding the losses"):
            losses = individual_losses(frame.info)
        self._blind = losses is None
        if needs & {HERE, THERE} and losses is None:
            frame.get("individual_losses")  # their values are enough
        if losses is None and not any(map(is_curved, needs)):
            parameters = dict(self.chosen.named_parameters())
            with self._guarded("finding the losses"):
                losses = stand_ins(frame.info, self.engine.capture.outputs, parameters)
        if losses is None:
            raise frame.missing("individual_losses")
        return losses

    @contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as failure:  # watching must never end a training
            self.engine.abandon()
            warnings.warn(f"cockpit: {doing}: {type(failure).__name__}: {failure}", stacklevel=6)
