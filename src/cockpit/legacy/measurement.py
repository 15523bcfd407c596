"""Measurement: what the built-in quantities of one cockpit see of its steps.

A step goes through the engine while its ``with`` block is open. Quantities that look at the update (Alpha,
UpdateSize) wait for the next block, before which the parameters have moved.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.engine import Engine
from cockpit.engine.needs import Diagonal, Known, Need
from cockpit.engine.statistics import Direction, Projection, Statistic
from cockpit.errors import Gap
from cockpit.legacy.context import Frame
from cockpit.legacy.extension import Chosen
from cockpit.legacy.losses import individual_losses, stand_ins, values
from cockpit.legacy.quantities.measured import Measured
from cockpit.legacy.slopes import Held
from cockpit.legacy.utils.optim import ComputeStep
from cockpit.quantities.quantity import Observation, OptimizerView, Reading

HERE, THERE = Projection(Direction.UPDATE), Projection(Direction.LAST_UPDATE)
LATE = frozenset({HERE, Known.UPDATES})
"""What is known only when the optimizer has moved."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """A step whose update is not known yet."""

    observation: Observation
    quantities: list[Measured]
    held: Held

    def moved(self, parameters: Mapping[str, Tensor]) -> Observation:
        """Return the observation with the update and the slopes along it."""
        o = self.observation
        updates = {n: parameters[n].detach() - before for n, before in o[Known.PARAMETERS].items()}
        o.statistics.restore(HERE, self.held.slopes(updates))
        return replace(o, known={**o.known, Known.UPDATES: updates})


class Measurement:
    """Runs the engine for one cockpit; every step is one batch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.chosen = Chosen(parameters)
        self.engine = Engine(self.chosen)
        self.engine.usual_batches = 1
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
            curved = any(isinstance(need, Diagonal) for need in needs)
            self.engine.capture.keep_outputs = curved or self._blind is not False

    def enter(self, frame: Frame, quantities: Sequence[Measured]) -> None:
        """Begin a step, before its backward pass."""
        parameters = dict(self.chosen.named_parameters())
        for q in quantities:
            q.start(parameters)
        self._due = [q for q in quantities if q.due(frame.step)]
        self._following = None
        needs = {need for q in self._due for need in q.source.request(q.memory, frame.step)}
        self.engine.last_update = {}
        if self._waiting is not None and self._waiting.observation.step == frame.step - 1:
            self._following = self._waiting.moved(parameters)
            self.engine.last_update = self._following[Known.UPDATES]
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
            # Tells the engine what the user's pass will not: the objective is the mean of these losses.
            torch.autograd.grad(losses.mean(), losses, retain_graph=True)

    def leave(self, frame: Frame) -> None:
        """Read the step after its backward pass; the readings go to the frame."""
        uses = self.engine.capture.uses()
        observed = None
        with self._guarded("reading the step"):
            self.engine.leave()
            self.engine.before_update()
            observed = self.engine.finish(moved=False)
        self.engine.capture.forget()
        before, self._waiting = self._waiting, None
        if observed is None:
            return
        known = dict(observed.known)
        if self._blind and (handed_in := values(frame.info)) is not None:
            known[Known.LOSSES] = handed_in
        now = Observation(
            step=frame.step,
            examples=observed.examples,
            statistics=observed.table,
            optimizer=_view(frame.info.get("optimizer"), self.chosen),
            memory={},
            known=known,
            eigenvalues=observed.eigenvalues,
            curvature_method=observed.methods,
            trace_variance=observed.variances,
            clock=time.time(),
        )
        if before is not None and self._following is not None:
            for q in before.quantities:
                _read(q, replace(self._following, memory=q.memory, following=now), frame)
        late = [q for q in self._due if LATE & set(q.source.needs)]
        for q in self._due:
            if q not in late:
                _read(q, replace(now, memory=q.memory), frame)
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
        losses = individual_losses(frame.info)
        self._blind = losses is None
        if needs & {HERE, THERE} and losses is None:
            frame.get("individual_losses")  # their values are enough
        if losses is None and not any(isinstance(need, Diagonal) for need in needs):
            parameters = dict(self.chosen.named_parameters())
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
            warnings.warn(f"cockpit: {doing}: {type(failure).__name__}: {failure}", stacklevel=5)


def _read(q: Measured, o: Observation, frame: Frame) -> None:
    """Ask a quantity for its value; what does not exist is left out. Gaps and estimates are said once."""
    remark = ""
    try:
        found = q.source.compute(o)
        reading = found if isinstance(found, Reading) else Reading(found)
        frame.readings[id(q)] = reading
        if reading.status == "estimated: hutchinson":
            remark = "is an estimate: extend(model) lets many models have the exact number"
    except Gap as gap:
        remark = f"has no value at step {o.step}: {gap}"
    except Exception as failure:
        remark = f"has no value at step {o.step}: {type(failure).__name__}: {failure}"
    kind = remark.partition(": ")[2]
    if remark and kind not in q.said:
        q.said.add(kind)
        warnings.warn(f"{type(q).__name__} {remark}", stacklevel=5)


def _view(optimizer: Any, chosen: Chosen) -> OptimizerView:
    """Return what quantities may know of the optimizer."""
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", [])
    rate = {id(p): float(g.get("lr", float("nan"))) for g in groups for p in g["params"]}
    rates = {name: rate[id(p)] for name, p in chosen.named_parameters() if id(p) in rate}
    plain = ComputeStep.is_sgd_default_kwargs(optimizer)
    return OptimizerView(type(optimizer).__name__, rates, plain, tuple(rate.values()))
