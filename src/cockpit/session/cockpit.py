"""Cockpit: plans a step, watches it, computes what is due, hands records on.

The only stateful object a user holds. It never changes the training: hooks are in place only while something is
due, no global random number is drawn, and whatever fails in here becomes a recorded gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cockpit.engine.engine import Engine
from cockpit.engine.ranks import ranks_of
from cockpit.engine.step import Observed
from cockpit.errors import CockpitError
from cockpit.quantities.quantity import Memory, Observation, Quantity
from cockpit.registry import preset_of
from cockpit.schedule import Schedule
from cockpit.session.checks import (
    checked_counts,
    checked_losses,
    checked_model,
    checked_optimizers,
    checked_quantities,
)
from cockpit.session.optimizers import Optimizers
from cockpit.session.recorder import Recorder
from cockpit.session.state import restored, saved


class Cockpit:
    """Watches the training of one model.

    Args:
        model: any `torch.nn.Module`, also wrapped in `DistributedDataParallel`.
        optimizer: the optimiser of its parameters, or a list of optimisers; a step ends when it has stepped.
        config: ``"economy"`` (default), ``"business"`` or ``"full"``.
        quantities: instead of a configuration, a list of quantities, quantity classes or names.
        when: a schedule for all quantities of the configuration, e.g. ``every(10)``; default: every step.
        run: a name (the run goes to ``./cockpit_logs/<time>-<name>/``) or a folder, which is used as it is; a run
            that is there already is continued.
        step: the number of the first step, for a training that is resumed without `load_state_dict`; by default 0,
            or the step after the last one of a run that is continued.
        seed: seed of the private random generators (Monte-Carlo curvature, eigenvalue starts).
        process_group: the data-parallel group whose batches belong together; default: all processes where
            `torch.distributed` is initialised, ``False``: this process alone.
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
        step: int | None = None,
        seed: int = 0,
        process_group: dist.ProcessGroup | bool | None = None,
    ) -> None:
        checked_counts(step, seed)
        self.model = checked_model(model)
        optimizers = checked_optimizers(optimizer)
        self.quantities = checked_quantities(config, quantities, when)
        device = next(p.device for p in self.model.parameters() if p.requires_grad)
        ranks = ranks_of(process_group, device)
        self._engine = Engine(self.model, ranks, seed, root=model)
        self._memory: dict[str, Memory] = {q.name: {} for q in self.quantities}
        self._due: list[Quantity] = []
        self._waiting: list[Quantity] = []
        self._previous: Observation | None = None
        self._watching = self._closed = self._started = False
        name = preset_of(self.quantities)
        self._recorder = Recorder(run, self.model, optimizers, self.quantities, name, ranks, step)
        self.step = self._recorder.first
        if ranks is not None:  # only the first rank knows the run
            self.step = int(ranks.sum(torch.tensor(float(self.step if ranks.rank == 0 else 0))))
        self._optimizers = Optimizers(self.model, optimizers, self._before_update, self._after_update)
        self._plan()

    # -- what the user calls ----------------------------------------------------------------------------

    @property
    def run(self) -> Any:
        """The run's folder (None on ranks that do not write)."""
        return self._recorder.folder

    @property
    def coverage(self) -> dict[str, tuple[str, str]]:
        """By which way each parameter's individual gradients are had, and why: {name: (way, reason)}."""
        return {name: (c.way.value, c.reason) for name, c in self._engine.coverage.items()}

    def backward(self, losses: Tensor) -> None:
        """Run ``losses.mean().backward()``, watched. Call it once for every micro-batch.

        Args:
            losses: one loss per example, [N] (``reduction="none"``).
        """
        self._check_open("backward")
        with self.watch(checked_losses(losses, "backward")):
            losses.mean().backward()

    @contextmanager
    def watch(self, losses: Tensor | None = None) -> Iterator[None]:
        """Watch the one backward pass inside the block, whoever calls it and however it weighs the losses.

        Args:
            losses: one loss per example, [N], of which the objective is made; without them the objective is taken
                for a mean over the leading axis of the model's input, and what needs losses is left out.
        """
        self._check_open("watch")
        if self._watching:
            raise CockpitError(
                "watch: a backward pass is being watched already. Leave the first `with cockpit.watch(…)` block "
                "(or the call of `cockpit.backward`) before the next one; each holds exactly one backward pass."
            )
        if losses is not None:
            checked_losses(losses, "watch")
        self._watching = True
        watched = False
        try:
            watched = self._enter(losses)
            yield
        except BaseException:
            self._engine.interrupt()  # the user's exception is the news; nothing of this pass is kept
            raise
        else:
            if watched:
                self._leave()
        finally:
            self._watching = False

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
        with self._guarded("closing"):
            if self._optimizers.stepped:
                self._close_step()
            elif self._engine.begun:
                self._skip()
        self._optimizers.remove()
        self._engine.close()
        self._recorder.close()
        self._memory.clear()
        self._previous = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs to go on as if it had never stopped (tensors and plain values)."""
        return saved(self.step, self._memory, self._engine, self._waiting, self._previous)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict`; records at or beyond its step are superseded."""
        self._engine.abandon()
        self.step = int(state["step"])
        self._started = bool(state["started"])
        self._waiting, self._previous = restored(
            state, self._memory, self._engine, self.quantities, self._optimizers.view()
        )
        self._recorder.rewind(self.step)
        self._plan()

    # -- a step -----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Decide once what the coming step is asked for."""
        needs = {need for q in self._waiting for need in q.needs_after}
        self._due = [q for q in self.quantities if self._is_due(q)]
        for quantity in self._due:
            with self._recorder.guarded(self.step, quantity.name):
                needs.update(quantity.request(self._memory[quantity.name], self.step))
        with self._guarded("preparing the step"):
            self._engine.begin(frozenset(needs))

    def _is_due(self, quantity: Quantity) -> bool:
        try:
            return quantity.when(self.step)
        except Exception as failure:
            self._recorder.failure(self.step, quantity.name, f"its schedule raised {failure!r}")
            return False

    def _leave(self) -> None:
        """The watched backward pass is over."""
        with self._guarded("reading the backward pass"):
            self._engine.leave()
            self._optimizers.note_gradients()
            if self._optimizers.stepping:
                self._engine.before_update()
        for text in self._engine.failures():
            self._recorder.failure(self.step, "", text)

    def _ready(self) -> bool:
        """Bring the step up to date before a backward pass; return whether there is anything to watch."""
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

    def _enter(self, losses: Tensor | None) -> bool:
        """Begin watching; return whether there is anything to watch."""
        if not self._ready():
            return False
        if losses is not None and losses.numel() == 0:
            self._recorder.event(self.step, "empty_batch", "a batch without examples was not watched")
            return False
        with self._guarded("preparing to watch"):
            self._engine.enter(losses)
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
        with self._guarded("preparing to watch"):
            self._engine.enter_proxy(proxy, examples)
            torch.autograd.Variable._execution_engine.queue_callback(self._leave)

    def _skip(self) -> None:
        text = "gradients were cleared although the optimiser had not stepped (a loss scaler does so after overflow)"
        self._recorder.event(self.step, "step_skipped", text)
        self._engine.abandon()
        self._plan()

    def _before_update(self) -> None:
        with self._guarded("measuring before the update"):
            self._engine.before_update()

    def _after_update(self) -> None:
        """The last optimiser has stepped: the step is over."""
        self._close_step()

    def _close_step(self) -> None:
        self._optimizers.begin()
        observed = None
        with self._guarded("finishing the step"):
            observed = self._engine.finish(moved=True) if self._engine.busy else self._engine.nothing()
        if observed is not None and (self._due or self._waiting):
            with self._guarded("recording the step"):
                self._record(observed)
        else:
            self._waiting, self._previous = [], None
            if self._due and not self._engine.begun:
                text = "the optimiser stepped without a watched backward pass: nothing is known of this step"
                self._recorder.event(self.step, "unwatched_step", text)
        self.step += 1
        self._plan()

    def _record(self, observed: Observed) -> None:
        view = self._optimizers.view()
        now = Observation(
            self.step,
            observed.examples,
            observed.table,
            view,
            {},
            observed.known,
            observed.eigenvalues,
            observed.methods,
            observed.variances,
            time.time(),
        )
        before = self._previous
        if before is not None:
            for quantity in self._waiting:
                self._recorder.read(
                    quantity, before, self._memory[quantity.name], self.coverage, following=now
                )
        for quantity in self._due:
            if not quantity.needs_after:
                self._recorder.read(quantity, now, self._memory[quantity.name], self.coverage)
        self._waiting = [q for q in self._due if q.needs_after]
        self._previous = now if self._waiting else None
        self._recorder.step(self.step, view.learning_rates, observed.notes, self.coverage)

    @contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as failure:  # watching must never end a training
            self._engine.abandon()
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
