"""Passes: the backward passes of a step, one for each micro-batch, from when they are expected until they are over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.answers.requests import MEAN, UPDATE, Requests
from cockpit.engine.answers.table import SEVERAL, Table
from cockpit.engine.coverage.coverage import Coverage, Plan, Way
from cockpit.engine.coverage.plans import Plans
from cockpit.engine.curvature.step_curvature import Curvatures
from cockpit.engine.derivatives.graph import graphs_kept
from cockpit.engine.numbers.lengths import multiples, squared_lengths
from cockpit.engine.numbers.precision import without_autocast
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.roster import Roster
from cockpit.engine.seeing.weights import Weights
from cockpit.engine.statistics import Total
from cockpit.engine.steps.accumulated import Accumulated, altered
from cockpit.engine.steps.batch import Batch
from cockpit.engine.steps.motion import Motion
from cockpit.engine.steps.step import Step
from cockpit.engine.steps.versions import Versions, gradient_versions
from cockpit.engine.steps.watch import Watch
from cockpit.engine.tapes.replay import Replay


class Passes:
    """Watches the backward passes of one model into its present `step`.

    Args:
        model: whose passes they are.
        capture: its layers.
        curvatures: what is computed on the graphs before a pass.
        motion: the steps of its optimiser.
        ranks: the processes of the run.
        fast: whether shortcuts may be taken.
        memory: how many bytes may be kept from a pass until the optimiser has moved; None: a share of what is used.
    """

    def __init__(
        self,
        model: nn.Module,
        capture: Capture,
        curvatures: Curvatures,
        motion: Motion,
        ranks: Ranks | None,
        fast: bool,
        memory: int | None,
    ) -> None:
        self.capture, self.curvatures, self.motion = capture, curvatures, motion
        self.ranks, self.fast = ranks, fast
        self.device = next(model.parameters()).device
        self.plans = Plans(model, capture)
        self.watch = Watch(capture, motion, self.device, fast, memory)
        self.coverage: dict[str, Coverage] = {}
        self.asked = Requests()
        self.step: Step | None = None
        """What has been seen of the present step."""
        self.usual_batches: int | None = None
        """How many micro-batches the step before had."""
        self.failures: list[str] = []
        """What has failed inside hooks."""
        self._roster = Roster(model)
        self._open = ExitStack()
        self._weighed = False
        self._seen: Versions = ()
        """What stood in ``.grad`` when the pass began."""
        self._seen_early = False
        self._plan: Plan | None = None

    @property
    def alone(self) -> bool:
        """Whether neither another micro-batch nor another process is expected."""
        return self.usual_batches == 1 and self.ranks is None

    @property
    def plain_step(self) -> bool:
        """Whether the coming step is known from the gradient: one batch, one process, plain gradient descent."""
        return self.motion.known and self.alone

    @property
    def readable(self) -> bool:
        """Whether the step will be known from the optimiser's state."""
        return self.fast and self.motion.readable

    def full_precision(self) -> AbstractContextManager[Any]:
        """Switch autocast off: statistics are computed in float32 or better, whatever the model runs in."""
        return without_autocast(self.device.type)

    def reached(self) -> None:
        """A backward pass has reached the first output: the last moment to look at ``.grad``."""
        with self.harmless("looking at the gradients"):
            parameters = self.trainable()
            self._seen = gradient_versions(parameters)
            self._seen_early = True
            step = self.step or self.start(parameters)
            if self.asked.lengths or self.asked.sums:
                step.accumulated.snapshot()

    def enter(self, losses: Tensor | None, examples: int, known: bool, own: bool = False) -> None:
        """Watch a backward pass that is about to run.

        Args:
            losses: one for each example, or stand-ins for them, if there are any.
            examples: how many there are.
            known: whether the losses are the user's.
            own: whether the objective is their plain mean and nothing else.
        """
        with self.full_precision():
            self._prepare(losses, examples, known, own)

    def _prepare(self, losses: Tensor | None, examples: int, known: bool, own: bool) -> None:
        early = self.capture.early()  # and from here on the passes are our own
        parameters = self.trainable()
        own = own and self.fast and self.ranks is None and not altered(parameters.values())
        if not self._seen_early:
            self._seen = gradient_versions(parameters)
        self._seen_early = False
        step = self.step or self.start(parameters, own)
        if not step.entered:
            step.own = own
        else:
            self._one_more(step, own)
        step.entered += 1
        if losses is not None and known:
            step.losses.append(losses.detach())
        plan = None
        if self.asked.individual or self.asked.diagonals:
            uses = self.capture.uses()
            plan = self.plans(losses, examples, step.parameters, uses)
            if plan is not self._plan:
                self._plan = plan
                self.cover(plan.ways)
            self.watch.open(step, self.asked, plan, uses, losses, examples, self.alone)
        self._keep_parameters(step)
        if self._reads_gradients:
            step.accumulated.enter(examples, own)
        if losses is not None and known:
            alone = self.usual_batches == 1
            self.curvatures.enter(losses, plan, step.table, alone)
            if self.curvatures.eigen and not alone:
                self._open.enter_context(graphs_kept())
        # Hooks last of all: the passes above were ours, only the user's is to be reduced.
        if losses is not None and known and not own:
            self._weighed = False
            self._open.callback(losses.register_hook(lambda w: self._weigh(w, losses)).remove)
        self.watch.listen(step, losses, early)

    def _one_more(self, step: Step, own: bool) -> None:
        """Make ready for another micro-batch of the step, if one was not expected."""
        if step.replay is not None:
            self.failures.append("a second micro-batch came unexpectedly: nothing of this step is kept")
            step.spoiled, step.replay, self.usual_batches = True, None, None
        if step.plain:
            step.plain = False
            step.before = _copied(step.parameters)
            step.table.void(UPDATE, SEVERAL)
        if step.foresight is not None:
            step.foresight, self.motion.surprised = None, True
            step.table.void(UPDATE, SEVERAL)
        if step.own and not own:  # what ``.grad`` holds from now on is not the examples' alone
            step.own = False
            for name, (value, factor) in step.accumulated.sums().items():
                step.table.add(Total(), name, value * factor, 0)

    def leave(self) -> None:
        """Note that the backward pass is over."""
        step = self.step
        self.watch.hush()
        self._open.close()
        if (failure := self.capture.failure) is not None:
            self.failures.append(f"in a hook: {type(failure).__name__}: {failure}")
        if step is not None:
            step.left = step.versions()
            if step.entered and not any(map(_has_changed, step.left[0], self._seen)):
                self._cancel(step)
            elif step.replay is None or not self._replayed(step, step.replay):
                self._end(step, self.watch.batch)
                if step.recording is not None and not self.failures:
                    with self.full_precision():
                        self.watch.record(step)
        self.watch.batch = None
        self.capture.forget()

    def _replayed(self, step: Step, replay: Replay) -> bool:
        assert self._plan is not None
        with self.full_precision(), torch.set_grad_enabled(False):
            done = self.watch.end_replay(step, replay, self.asked, self._plan)
        self._keep_parameters(step)
        if step.spoiled:
            self.failures.append(
                f"replaying a step: {self.watch.tapes.failure}; nothing of this step is kept"
            )
        return done

    def _end(self, step: Step, batch: Batch | None) -> None:
        if batch is not None:
            batch.end()
            self.watch.held = batch.held_bytes or self.watch.held
            # (Data-parallel wrappers fill in gradients of parameters that only other ranks use.)
            unused = set(batch.plan.names(Way.UNUSED)) if self.ranks is None else set()
            for name in unused and unused & self._changed(step):
                reason = "its gradient came from a backward pass inside the backward pass"
                step.table.begin_using(name, reason)
                self.cover({name: Coverage(Way.NONE, reason)})
        if self._reads_gradients:
            grown = step.accumulated.leave()
            if self.asked.lengths:
                sums = step.accumulated.sums()
                raw = dict(zip(sums, squared_lengths([v for v, _ in sums.values()]), strict=True))
                step.lengths = multiples(raw, {n: factor * factor for n, (_, factor) in sums.items()})
            if batch is not None and not batch.plan.checked:
                batch.confirm({n: v * factor for n, (v, factor) in grown.items()})
            if self.asked.sums or (MEAN in self.asked.needs and not step.immediate):
                step.accumulated.keep()  # ``.grad`` may be clipped, averaged or cleared before they are read

    def _cancel(self, step: Step) -> None:
        """Take back a micro-batch of which no backward pass was made."""
        step.entered -= 1
        step.notes.append(("nothing_watched", "a watched block ended without a backward pass"))
        if step.losses:
            step.losses.pop()
        if self.watch.batch is not None:
            step.batches.pop()
        if self.watch.batch is not None or step.replay is not None:
            step.table.drop()
        step.replay = step.recording = None
        self.curvatures.cancel()

    def _changed(self, step: Step) -> set[str]:
        """Return the parameters whose ``.grad`` is not what it was on entering."""
        changed = map(_has_changed, step.left[0], self._seen)
        return {name for name, has in zip(step.parameters, changed, strict=True) if has}

    def abandon(self) -> None:
        """Forget the step."""
        self.watch.hush()
        self._open.close()
        self.watch.batch = self.step = None
        self.capture.forget()
        self.curvatures.abandon()

    def close(self) -> None:
        """Forget everything."""
        self.watch.close()
        self.asked, self._plan = Requests(), None

    def cover(self, ways: Mapping[str, Coverage]) -> None:
        """Take note of how parameters are served; `coverage` is another object whenever it has changed."""
        self.coverage = {**self.coverage, **ways}

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that are trained, by name."""
        if self._roster.refresh():
            frozen = Coverage(Way.FROZEN, "does not require gradients")
            self.cover(dict.fromkeys(self._roster.frozen, frozen))
        return self._roster.trainable

    def start(self, parameters: dict[str, Tensor], own: bool = False) -> Step:
        """Begin a step, when gradients have been looked at; ``own``: the objective of its first pass is ours."""
        step = Step(parameters, Table(parameters), Accumulated(parameters))
        step.fresh = not any(self._seen)
        step.plain = own and self.plain_step and step.fresh
        self.step = step
        return step

    def _keep_parameters(self, step: Step) -> None:
        """Copy the parameters before the step, where they are needed and no recording does so."""
        told = step.plain or self.readable
        wanted = self.asked.parameters or (self.asked.moves and not told)
        if wanted and not step.before and step.replay is None and not step.spoiled:
            step.before = _copied(step.parameters)

    @property
    def _reads_gradients(self) -> bool:
        unchecked = self.watch.batch is not None and not self.watch.batch.plan.checked
        return unchecked or self.asked.reads_gradients

    def _weigh(self, weights: Tensor, losses: Tensor) -> None:
        """Take note of the objective's weights, inside the user's backward pass: must not raise."""
        if self._weighed:  # our own passes below come through here again
            return
        self._weighed = True
        with self.harmless("weighing the examples"):
            self._take_weights(weights, losses)

    @contextmanager
    def harmless(self, doing: str) -> Iterator[None]:
        """Keep what fails inside a hook of ours away from the user's pass; the step is then given up."""
        try:
            yield
        except Exception as failure:
            self.failures.append(f"{doing}: {type(failure).__name__}: {failure}")
            if self.step is not None:
                self.step.spoiled = True

    def _take_weights(self, weights: Tensor, losses: Tensor) -> None:
        step, known = self.step, Weights.read(weights)
        if step is None:
            return
        # Backward passes of our own, inside the user's:
        with self.capture.receive(None), self.full_precision():
            if self._plan is not None:
                self.watch.weigh(step, self.asked, self._plan, known, losses)
                self._keep_parameters(step)  # which a recording would have done
            batch = self.watch.batch
            if batch is not None and batch.keep is not None:
                step.losses[-1] = step.losses[-1][batch.keep]
                self.curvatures.cancel()
                self.curvatures.enter(losses, batch.plan, step.table, self.usual_batches == 1, batch.keep)
            if self._reads_gradients:
                step.accumulated.weigh(known, losses)


def _has_changed(now: tuple[int, int] | None, seen: tuple[int, int] | None) -> bool:
    return now is not None and now != seen


def _copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in parameters.items()}
