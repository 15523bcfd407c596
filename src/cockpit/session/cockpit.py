"""Cockpit: plans a step, watches it, computes what is due, hands records on.

The only stateful object a user holds. It never changes the training: hooks are in place only while something is
due, no global random number is drawn, and whatever fails in here becomes a recorded gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cockpit.engine.answers.ranks import ranks_of
from cockpit.engine.engine import Engine
from cockpit.errors import CockpitError
from cockpit.quantities.quantity import Memory, Quantity
from cockpit.registry import preset_of
from cockpit.schedule import Schedule
from cockpit.session.agenda import Agenda
from cockpit.session.budget import Budget
from cockpit.session.checks import (
    checked_counts,
    checked_losses,
    checked_model,
    checked_optimizers,
    checked_quantities,
)
from cockpit.session.evaluation import Evaluation
from cockpit.session.guard import Guard
from cockpit.session.objective import Objective
from cockpit.session.optimizers import Optimizers
from cockpit.session.pending import Pending
from cockpit.session.recorder import Recorder
from cockpit.session.state import restored, saved
from cockpit.session.stopwatch import clock_for
from cockpit.session.watched import Watched


class Cockpit:
    """Watches the training of one model.

    Args:
        model: any `torch.nn.Module`, also wrapped in `DistributedDataParallel`.
        optimizer: the optimiser of its parameters, or a list of optimisers; a step ends when it has stepped.
        config: ``"economy"`` (default), ``"business"`` or ``"full"``.
        quantities: instead of a configuration, a list of quantities, quantity classes or names.
        when: a schedule for all quantities of the configuration, e.g. ``every(10)``; default: every step.
        budget: the share of training time that watching may take, e.g. 0.05; steps are then left out as needed.
        run: a name (the run goes to ``./cockpit_logs/<time>-<name>/``) or a folder, which is used as it is; a run
            that is there already is continued.
        step: the number of the first step, for a training that is resumed without `load_state_dict`; by default 0,
            or the step after the last one of a run that is continued.
        seed: seed of the private random generators (Monte-Carlo curvature, eigenvalue starts).
        process_group: the data-parallel group whose batches belong together; default: all processes where
            `torch.distributed` is initialised, ``False``: this process alone.
        memory: how many bytes may be kept from a backward pass until the optimiser has moved (Alpha needs that where
            the step cannot be told before: docs/quantities.md); default: an eighth of what is allocated on a GPU,
            512 MiB on a CPU.
        fast: ``False`` computes everything in the plain way, without compiled kernels and shortcuts, for comparison.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        config: str | None = None,
        quantities: Sequence[Quantity | type[Quantity] | str] | None = None,
        run: str | PathLike[str] | None = None,
        *,
        when: Schedule | Callable[[int], bool] | int | None = None,
        budget: float | None = None,
        step: int | None = None,
        seed: int = 0,
        process_group: dist.ProcessGroup | bool | None = None,
        memory: int | None = None,
        fast: bool = True,
    ) -> None:
        checked_counts(step, seed, memory)
        self.model = checked_model(model)
        optimizers = checked_optimizers(optimizer)
        self.quantities = checked_quantities(config, quantities, when)
        device = next(p.device for p in self.model.parameters() if p.requires_grad)
        ranks = ranks_of(process_group, device)
        agree = None if ranks is None else ranks.first
        self.budget = None if budget is None else Budget(budget, self.quantities, clock_for(device), agree)
        """What watching has cost and how often quantities are measured, where a budget was given."""
        self._engine = Engine(self.model, ranks, seed, model, fast, memory)
        self._meter = self._engine.capture.meter
        self._memory: dict[str, Memory] = {q.name: {} for q in self.quantities}
        self._covered: tuple[Any, dict[str, tuple[str, str]]] = (None, {})
        self._watching = self._closed = self._started = False
        self._guards: dict[str, Guard] = {}
        self._objective = Objective()
        self._fell_asleep: int | None = None
        """The first of the steps at which the session rests, where it does."""
        name = preset_of(self.quantities)
        self._recorder = Recorder(run, self.model, optimizers, self.quantities, name, ranks, step)
        self.step = self._recorder.first
        if ranks is not None:  # only the first rank knows the run
            self.step = int(ranks.sum(torch.tensor(float(self.step if ranks.rank == 0 else 0))))
        self._optimizers = Optimizers(self.model, optimizers, self._before_update, self._after_update)
        self._engine.motion.foresee = self._optimizers.foresee
        self._agenda = Agenda(self.quantities, self._memory, self.budget, self._recorder)
        self._evaluation = Evaluation(self._recorder, self._memory, budget is None, self._lost)
        self._plan()

    # -- what the user calls ----------------------------------------------------------------------------

    @property
    def run(self) -> Any:
        """The run's folder (None on ranks that do not write)."""
        return self._recorder.folder

    @property
    def coverage(self) -> dict[str, tuple[str, str]]:
        """By which way each parameter's individual gradients are had, and why: {name: (way, reason)}."""
        if self._covered[0] is not self._engine.coverage:
            ways = self._engine.coverage
            self._covered = (ways, {name: (c.way.value, c.reason) for name, c in ways.items()})
        return self._covered[1]

    def backward(self, losses: Tensor) -> None:
        """Run ``losses.mean().backward()``, watched. Call it once for every micro-batch.

        Args:
            losses: one loss per example, [N] (``reduction="none"``).
        """
        self._check_open("backward")
        if self._optimizers.resting:
            self._objective.backward(losses)
            return
        with Watched(self, checked_losses(losses, "backward"), own=True):
            self._objective.backward(losses)

    def watch(self, losses: Tensor | None = None) -> AbstractContextManager[None]:
        """Watch the one backward pass inside the block, whoever calls it and however it weighs the losses.

        Args:
            losses: one loss per example, [N], of which the objective is made; without them the objective is taken
                for a mean over the leading axis of the model's input, and what needs losses is left out.
        """
        self._check_open("watch")
        if losses is not None:
            checked_losses(losses, "watch")
        return Watched(self, losses, own=False)

    def log(self, **metrics: float) -> None:
        """Record numbers of your own at the present step: ``train_loss``, ``valid_accuracy``, whatever you name.

        The learning rate is read from the optimiser and recorded with them.
        """
        self._check_open("log")
        self._recorder.metrics(self.step, {"learning_rate": self._optimizers.learning_rate, **metrics})

    def close(self) -> None:
        """End the run: remove every hook and flush the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        with self._guarded("closing"):
            if self._optimizers.stepped:
                self._close_step()
            elif self._engine.begun:
                self._skip()
            self._evaluation.settle(wait=True)
        with self._recorder.guarded(self.step, "overhead"):
            self._recorder.note({"overhead": self._meter.share})
            if self.budget is not None:
                self._recorder.note({"budget": self.budget.describe()})
        self._optimizers.remove()
        self._engine.close()
        self._recorder.close()
        self._memory.clear()
        self._evaluation.close()
        self._agenda.forget()
        self._objective.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs to go on as if it had never stopped (tensors and plain values)."""
        self._wake()
        self._evaluation.settle(wait=True)
        previous = self._evaluation.previous
        state = saved(self.step, self._started, self._memory, self._engine, self._agenda.waiting, previous)
        return {**state, "budget": None if self.budget is None else self.budget.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict`; records at or beyond its step are superseded."""
        self._wake()
        self._agenda.forget()
        self._evaluation.settle(wait=True)
        self._engine.abandon()
        self.step = int(state["step"])
        self._started = bool(state["started"])
        self._agenda.waiting, self._evaluation.previous = restored(
            state, self._memory, self._engine, self.quantities, self._optimizers.view()
        )
        if self.budget is not None and state.get("budget") is not None:
            self.budget.load_state_dict(state["budget"])
        self._recorder.rewind(self.step)
        self._plan()

    # -- a step -----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Decide once what the coming step is asked for."""
        self._agenda.plan(self.step)
        with self._guarded("preparing the step"):
            needs = self._agenda.needs(self.step)
            if needs or self._engine.busy:
                self._engine.motion.plain = self._optimizers.alone and self._optimizers.plain
                self._engine.motion.readable = self._optimizers.readable
                self._engine.begin(needs)

    def _interrupt(self) -> None:
        """The watched backward pass was broken off."""
        try:
            self._engine.interrupt()
        finally:
            self._watching = False

    def _leave(self) -> None:
        """The watched backward pass is over."""
        with self._meter, self._guarded("reading the backward pass"):
            self._engine.leave()
            self._optimizers.note_gradients()
            if self._optimizers.stepping:
                self._engine.before_update()
        for text in self._engine.failures():
            self._recorder.failure(self.step, "", text)

    def _ready(self) -> bool:
        """Bring the step up to date before a backward pass; return whether there is anything to watch."""
        if self._optimizers.resting:
            return False
        if self._optimizers.stepped:  # several optimisers, of which not all stepped
            self._close_step()
        if self._optimizers.stepping and self._engine.begun:
            return False  # a closure evaluated again (LBFGS): the step is seen where it began
        if not self._started:
            self._started = True
            parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
            for quantity in self.quantities:
                with self._recorder.guarded(self.step, quantity.name):
                    quantity.start(parameters, self._memory[quantity.name])
        if self._engine.begun and self._optimizers.gradients_cleared():
            self._skip()
        return self._engine.busy

    def _enter(self, losses: Tensor | None, own: bool) -> bool:
        """Begin watching; return whether there is anything to watch."""
        ready = self._ready()
        if self.budget is not None and not self._optimizers.resting:
            with self._recorder.guarded(self.step, "budget"):
                self.budget.entered()
        if not ready:
            return False
        if losses is not None and losses.numel() == 0:
            self._recorder.event(self.step, "empty_batch", "a batch without examples was not watched")
            return False
        with self._meter, self._guarded("preparing to watch"):
            self._engine.enter(losses, own)
            return True
        return False

    def _outputs_seen(self, outputs: list[Tensor], examples: int) -> None:
        """A forward pass of an attached model is over: wait for the backward pass."""
        if not self._watching:
            self._engine.await_outputs(outputs, examples, self._backward_seen)

    def _backward_seen(self, proxy: Tensor, examples: int) -> None:
        """A backward pass has reached the outputs of an attached model."""
        if self._watching or self._closed or not self._ready():
            return
        with self._meter, self._guarded("preparing to watch"):
            self._engine.enter_proxy(proxy, examples)
            torch.autograd.Variable._execution_engine.queue_callback(self._leave)

    def _skip(self) -> None:
        text = "gradients were cleared although the optimiser had not stepped (a loss scaler does so after overflow)"
        self._recorder.event(self.step, "step_skipped", text)
        if self.budget is not None:
            self.budget.skipped()
        self._engine.abandon()
        self._plan()

    def _before_update(self) -> None:
        if not self._engine.busy:
            return
        with self._meter, self._guarded("measuring before the update"):
            self._engine.before_update()

    def _after_update(self) -> None:
        """The last optimiser has stepped: the step is over."""
        if self._optimizers.resting:
            self._rest()
            return
        with self._meter:
            self._close_step()
        if (seconds := self._meter.lap()) is not None:
            text = f"watching took {seconds:.1f} s at this step; at the first steps of a kind kernels are compiled"
            self._recorder.event(self.step - 1, "slow_step", text)
        overhead = self._meter.news()
        if overhead is not None:
            self._recorder.note({"overhead": overhead})

    def _close_step(self) -> None:
        began = time.perf_counter()
        self._optimizers.begin()
        seen = self._agenda.empty or self._finish()
        self._evaluation.settle_ripe()
        self.step += 1
        if self.budget is not None:
            with self._recorder.guarded(self.step, "budget"):
                self.budget.ended(seen, self._evaluation.busy)
        self._plan()
        if self.budget is not None:
            self.budget.paid(time.perf_counter() - began)
            quiet = self._agenda.empty and not self._evaluation.busy and self._optimizers.alone
            if quiet and (steps := self.budget.rest(self.step)):
                self._optimizers.resting, self._fell_asleep = steps, self.step

    def _rest(self) -> None:
        """Count a step at which the budget allows nothing; the last of them is planned as usual."""
        self.step += 1
        self._optimizers.resting -= 1
        if not self._optimizers.resting:
            self._wake()
            self._plan()

    def _wake(self) -> None:
        """End a rest, if there is one."""
        if self.budget is not None and self._fell_asleep is not None:
            began, self._fell_asleep, self._optimizers.resting = self._fell_asleep, None, 0
            with self._recorder.guarded(self.step, "budget"):
                self.budget.rested(self.step - began)

    def _finish(self) -> bool:
        """Take what was measured of the step; return whether it could be observed."""
        observed, view, failed = None, self._optimizers.view(), True
        with self._guarded("finishing the step"):
            if self._engine.busy:
                rates = view.learning_rate if view.plain_sgd else None
                observed = self._engine.finish(True, rates, self._optimizers.taken)
            else:
                observed = self._engine.nothing()
            failed = False
        if observed is not None:
            agenda, now, coverage = self._agenda, time.time(), self.coverage
            self._evaluation.add(
                Pending(self.step, observed, view, agenda.due, agenda.waiting, now, coverage)
            )
            agenda.observed()
            if observed.heavy or agenda.adapts:
                self._evaluation.settle(wait=True)
            return True
        self._agenda.waiting = []
        if self._agenda.due and not failed:
            text = "the optimiser stepped without a watched backward pass: nothing is known of this step"
            self._recorder.event(self.step, "unwatched_step", text)
        return False

    def _guarded(self, doing: str) -> Guard:
        """Return the guard around what is done (a guard has no state, so that one serves all steps)."""
        guard = self._guards.get(doing)
        if guard is None:
            guard = self._guards[doing] = Guard(self._failed, doing)
        return guard

    def _failed(self, doing: str, failure: Exception) -> None:
        """Give up the step: watching must never end a training."""
        self._engine.abandon()
        self._lost(doing, failure)

    def _lost(self, doing: str, failure: Exception) -> None:
        """Record a failure of our own."""
        self._recorder.failure(self.step, "", f"{doing}: {type(failure).__name__}: {failure}")

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise CockpitError(
                f"{call}: this cockpit is closed; create a new one (with run=… to continue its run)"
            )


def attach(
    model: nn.Module, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], **settings: Any
) -> Cockpit:
    """Watch a training without touching its loop; takes the settings of `Cockpit` and returns one.

    The objective is taken for a mean over the leading axis of the model's input (stored with the run). What needs
    the losses themselves, or the curvature, is left out; hand them to ``cockpit.backward`` for those.
    """
    cockpit = Cockpit(model, optimizer, **settings)
    cockpit._recorder.assume("the objective is a mean over the leading axis of the model's input")
    cockpit._engine.capture.on_outputs = cockpit._outputs_seen
    cockpit._plan()
    return cockpit
