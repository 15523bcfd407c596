"""The engine of one model: watches the backward passes of a step and hands out what was asked for.

A step goes through fixed stages, each called by the session: ``begin(needs)``, then for every micro-batch
``enter(losses)`` and ``leave()``, then ``before_update()`` when the optimiser is about to move, and ``finish()``
when it has. Nothing is kept from one step to the next but the last update and the last eigenvector.

What must wait for a direction known later (the mean gradient of several micro-batches, the optimiser's step) keeps
the layers' inputs and output gradients, N·T·(I+O) numbers, never N·D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.accumulated import Accumulated, altered
from cockpit.engine.batch import HOLD, Batch
from cockpit.engine.capture import Capture, without_autocast
from cockpit.engine.coverage import Coverage, Plan, Way
from cockpit.engine.derived import Separation, squared_lengths
from cockpit.engine.ending import SEVERAL, Ending, give_up_update
from cockpit.engine.factored import Vectors
from cockpit.engine.graph import graphs_kept
from cockpit.engine.motion import Motion
from cockpit.engine.needs import Known, Need
from cockpit.engine.observed import Observed
from cockpit.engine.plans import Plans
from cockpit.engine.proxy import Proxy
from cockpit.engine.ranks import Ranks
from cockpit.engine.recorder import Recorder
from cockpit.engine.recording import Recording
from cockpit.engine.replay import Replay
from cockpit.engine.requests import LAST, MEAN, UPDATE, Requests, requests
from cockpit.engine.roster import Roster
from cockpit.engine.spread import Spread, spreads
from cockpit.engine.statistics import Statistic, Total
from cockpit.engine.step import Step
from cockpit.engine.step_curvature import Curvatures
from cockpit.engine.table import Table
from cockpit.engine.tape import Asked, Tape
from cockpit.engine.tapes import Tapes

SMALL = 2**26
"""How many bytes may always be kept on a device for the step; more than that up to an eighth of the peak."""


class Engine:
    """Watches one model; ``root`` is what the training calls, if that is a wrapper around it.

    Not ``fast``, it takes no shortcut: the same numbers in the plain way, for comparison.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks | None = None,
        seed: int = 0,
        root: nn.Module | None = None,
        fast: bool = True,
        memory: int | None = None,
    ) -> None:
        self.model, self.ranks, self.fast = model, ranks, fast
        self.capture = Capture(model, root)
        self.curvatures = Curvatures(self.capture, ranks, seed)
        self.motion = Motion()
        self.coverage: dict[str, Coverage] = {}
        self.usual_batches: int | None = None
        self._device = next(model.parameters()).device
        self.memory = memory
        self.roster = Roster(model)
        self.plans = Plans(model, self.capture)
        self.tapes = Tapes(self.capture)
        self._kind: Any = None
        self._asked = Requests()
        self._asked_for: tuple[Any, bool, bool] = (None, False, False)
        self._step: Step | None = None
        self._open = ExitStack()
        self._batch: Batch | None = None
        self._proxy: Proxy | None = None
        self._weighed = False
        self._failures: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._seen_early = False
        self._plan: Plan | None = None
        self.blind = False
        """Whether backward passes come without losses."""

    # -- stages -----------------------------------------------------------------------------------------

    def begin(self, needs: frozenset[Need]) -> None:
        """Prepare for a step that asks for these needs; with none, nothing is hooked."""
        key = (needs, bool(self.motion.last), self._plain_step)
        if key[0] is not self._asked_for[0] or key[1:] != self._asked_for[1:]:
            self._asked_for = key
            self._asked = requests(needs, self.ranks is not None, *key[1:])
        self._step = None
        asked = self._asked
        self.capture.keep_outputs = self.blind or bool(asked.diagonals)
        if asked.individual or asked.diagonals or (needs and self.capture.on_outputs is not None):
            self.capture.arm()
        elif self.capture.armed:
            self.capture.disarm()
        self.curvatures.begin(asked.needs)

    @property
    def _plain_step(self) -> bool:
        """Whether the coming step is known from the gradient: one batch, one process, plain gradient descent."""
        return self.motion.known and self.usual_batches == 1 and self.ranks is None

    @property
    def busy(self) -> bool:
        """Whether anything is asked of this step."""
        return bool(self._asked.needs)

    @property
    def begun(self) -> bool:
        """Whether a backward pass of this step has been watched."""
        return self._step is not None and self._step.entered > 0

    def enter(self, losses: Tensor | None, own: bool = False) -> None:
        """Watch a backward pass that is about to run, of these losses if they are known.

        ``own`` says that the objective is their plain mean and nothing else.
        """
        if losses is not None:
            self._enter(losses, len(losses), known=True, own=own)
            return
        self.blind = True
        outputs, examples = list(self.capture.outputs), self.capture.examples
        if not (outputs and self.await_outputs(outputs, examples, self._blindly)):
            self._enter(None, max(1, examples), known=False)

    def enter_proxy(self, proxy: Tensor, examples: int) -> None:
        """Watch a backward pass that has reached the model's outputs."""
        self._enter(proxy, examples, known=False)

    def await_outputs(
        self, outputs: list[Tensor], examples: int, ready: Callable[[Tensor, int], None]
    ) -> bool:
        """Call ``ready`` with stand-in losses when a backward pass reaches these outputs; False if it cannot."""
        if self._proxy is not None:
            self._proxy.remove()
        self.capture.expect()
        self._proxy = Proxy(outputs, examples, ready, self._reached)
        return self._proxy.waiting

    def _blindly(self, proxy: Tensor, examples: int) -> None:
        """A backward pass without losses has reached the outputs."""
        with self._harmless("preparing to watch"):
            self._enter(proxy, examples, known=False)

    def _reached(self) -> None:
        """A backward pass has reached the first output: the last moment to look at ``.grad``."""
        with self._harmless("looking at the gradients"):
            step = self._step or self._start(self._trainable())
            self._seen = step.gradient_versions()
            self._seen_early = True
            if self._asked.lengths or self._asked.sums:
                step.accumulated.snapshot()

    def _enter(self, losses: Tensor | None, examples: int, known: bool, own: bool = False) -> None:
        with self._full_precision():
            self._prepare(losses, examples, known, own)

    def _full_precision(self) -> AbstractContextManager[Any]:
        """Switch autocast off: statistics are computed in float32 or better, whatever the model runs in."""
        return without_autocast(self._device.type)

    def _prepare(self, losses: Tensor | None, examples: int, known: bool, own: bool) -> None:
        early = self.capture.early()  # and from here on the passes are our own
        parameters = self._trainable()
        own = own and self.fast and self.ranks is None and not altered(parameters.values())
        step = self._step or self._start(parameters, own)
        if not step.entered:
            step.own = own
        else:
            self._one_more(step, own)
        step.entered += 1
        if not self._seen_early:
            self._seen = step.gradient_versions()
        self._seen_early = False
        if losses is not None and known:
            step.losses.append(losses.detach())
        plan = None
        if self._asked.individual or self._asked.diagonals:
            plan = self.plans(losses, examples, step.parameters)
            if plan is not self._plan:
                self._plan = plan
                self.cover(plan.ways)
            self._watch_or_collect(step, plan, losses, examples)
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
        if self._batch is not None:
            for use, grads in early:
                self._batch.receive(use, grads)
            self._meet(self._batch, losses)
            receive = self._batch.receive
            if step.recording is not None:
                receive = step.recording.noting(receive)
            self._open.enter_context(self.capture.receive(receive))
        elif step.replay is not None:
            if step.replay.loose is not None:
                self._meet(step.replay.loose.batch, losses)
            self._open.enter_context(self.capture.receive(step.replay.receive))

    def _meet(self, batch: Batch, losses: Tensor | None) -> None:
        """Listen where parameters without an example axis meet the examples."""
        names = batch.plan.names(Way.SPREAD)
        if not names or losses is None:
            return
        found = spreads(losses, {n: batch.parameters[n] for n in names}, self.capture.uses())
        for name in names:
            if name not in found:
                batch.table.gap(name, "it meets the examples in another way than when that was checked")
                continue
            hook = partial(self._met, batch, name, found[name])
            self._open.callback(found[name].node.register_prehook(hook).remove)

    def _met(self, batch: Batch, name: str, spread: Spread, grads: tuple[Tensor | None, ...]) -> None:
        if self.capture.listening:
            batch.meet(name, spread, grads)

    def _one_more(self, step: Step, own: bool) -> None:
        """Make ready for another micro-batch of the step, if one was not expected."""
        if step.replay is not None:
            self._failures.append("a second micro-batch came unexpectedly: nothing of this step is kept")
            step.spoiled, self.usual_batches = True, None
        if step.plain:
            step.plain = False
            step.before = _copied(step.parameters)
            step.table.void(UPDATE, SEVERAL)
        if step.own and not own:  # what ``.grad`` holds from now on is not the examples' alone
            step.own = False
            for name, (value, factor) in step.accumulated.sums().items():
                step.table.add(Total(), name, value * factor, 0)

    def leave(self) -> None:
        """Note that the backward pass is over."""
        step = self._step
        self._open.close()
        if (failure := self.capture.failure) is not None:
            self._failures.append(f"in a hook: {type(failure).__name__}: {failure}")
        if step is not None:
            changed = self._changed(step)
            if not changed and step.entered:
                self._cancel(step)
            elif step.replay is None or not self._replayed(step, step.replay):
                self._end(step, self._batch, changed)
                if step.recording is not None and not self._failures and self._plan is not None:
                    self._record(step, self._plan, step.recording)
        self._batch = None
        self.capture.forget()
        if self._proxy is not None:
            self._proxy.remove()

    def _record(self, step: Step, plan: Plan, recording: Recording) -> None:
        with self._full_precision():
            self.tapes.record(self._kind, self._asked_of(step, plan), recording, step.losses[-1])

    def _replayed(self, step: Step, replay: Replay) -> bool:
        """End a replay; where it has failed, go the ordinary way with what was received, if that is all there."""
        with self._full_precision(), torch.no_grad():
            try:
                replay.end(step.losses[-1])
                return True
            except Exception as failure:
                self.tapes.give_up(failure)
            step.replay = None
            if replay.lost:
                self._failures.append(f"replaying a step: {self.tapes.failure}; nothing of this step is kept")
                step.spoiled = True
                return True
            assert self._plan is not None
            self._keep_parameters(step)
            self._watch(step, self._plan, None, len(step.losses[-1]), begun=True)
            assert self._batch is not None
            for use, grads in replay.received:
                self._batch.receive(use, grads)
        return False

    def cover(self, ways: Mapping[str, Coverage]) -> None:
        """Take note of how parameters are served; `coverage` is another object whenever it has changed."""
        self.coverage = {**self.coverage, **ways}

    def _end(self, step: Step, batch: Batch | None, changed: set[str]) -> None:
        if batch is not None:
            batch.end()
            # (Data-parallel wrappers fill in gradients of parameters that only other ranks use.)
            for name in set(batch.plan.names(Way.UNUSED)) & changed if self.ranks is None else ():
                reason = "its gradient came from a backward pass inside the backward pass"
                step.table.begin_using(name, reason)
                self.cover({name: Coverage(Way.NONE, reason)})
        if self._reads_gradients:
            grown = step.accumulated.leave()
            if self._asked.lengths:
                sums = step.accumulated.sums()
                raw = squared_lengths([v for v, _ in sums.values()])
                step.lengths = {
                    n: x * factor**2 for x, (n, (_, factor)) in zip(raw, sums.items(), strict=True)
                }
            if batch is not None and not batch.plan.checked:
                batch.confirm({n: v * factor for n, (v, factor) in grown.items()})
            if self._asked.sums or (MEAN in self._asked.needs and not step.immediate):
                step.accumulated.keep()  # ``.grad`` may be clipped, averaged or cleared before they are read

    def _cancel(self, step: Step) -> None:
        """Take back a micro-batch of which no backward pass was made."""
        step.entered -= 1
        step.notes.append(("nothing_watched", "a watched block ended without a backward pass"))
        if step.losses:
            step.losses.pop()
        if self._batch is not None:
            step.batches.pop()
        if self._batch is not None or step.replay is not None:
            step.table.drop()
        step.replay = step.recording = None
        self.curvatures.cancel()

    def _changed(self, step: Step) -> set[str]:
        """Return the parameters whose ``.grad`` is not what it was on entering."""
        now, step.left = step.gradient_versions(), step.versions()
        return {name for name, version in now.items() if self._seen.get(name) != version}

    def before_update(self) -> None:
        """Compute what needs all micro-batches and the parameters where they still are."""
        step = self._step
        if step is None:
            return
        self.curvatures.before_update(step.parameters)
        if step.entered and not step.looked:  # the first of several optimisers
            step.looked = True
            self.motion.look(step)
            if step.replay is None:
                self._before_moving(step)

    def _before_moving(self, step: Step) -> None:
        """Measure what depends on where the parameters are."""
        if self._asked.joint:
            step.table.fill(self._asked.joint, everywhere=self.ranks is not None)
        for statistic in self._asked.statistics:
            if isinstance(statistic, Separation):
                names = [n for n in step.parameters if n in statistic.origin]
                now = [step.parameters[n].detach() for n in names]
                origins = [statistic.origin[n].to(p) for n, p in zip(names, now, strict=True)]
                step.separations[statistic] = dict(zip(names, squared_lengths(now, origins), strict=True))

    def finish(self, moved: bool, rates: Mapping[str, float] | None = None) -> Observed | None:
        """Compute the rest once the optimiser has moved (or the step was given up) and hand everything out.

        ``rates`` are the learning rates of the parameters, where the optimiser is `plain`.
        """
        step, self._step = self._step, None
        seen = step is not None and step.entered > 0 and not step.spoiled
        if self.ranks is not None and not self.ranks.all(seen):
            return None  # what one rank has not seen, the others must not wait for
        if step is None or not seen:
            return None
        rates = None if step.touched or step.gradient_versions() != step.left_gradients() else rates
        with self._full_precision(), torch.no_grad():
            if step.replay is not None:
                observed = self.tapes.observed(step, rates)
                updates = self.tapes.last_update(step, rates)
                if step.plain and rates is None:
                    give_up_update(step)
            else:
                observed, updates = Ending(step, self._asked, self.ranks, rates).observed(moved)
                self.usual_batches = step.entered
                if step.table.is_void(UPDATE):  # slopes at its end alone tell nothing
                    updates = {}
            self.motion.remember({**updates, **_by_factors(step, updates)})
            observed.eigenvalues, observed.methods = self.curvatures.eigenvalues, self.curvatures.methods
            observed.variances, observed.notes = self._variances(), step.all_notes()
            observed.send()
        return observed

    def nothing(self) -> Observed:
        """Return the outcome of a step of which nothing was asked."""
        return Observed(0, Table({}), {})

    def interrupt(self) -> None:
        """Forget a pass that the user's code broke off; with others before it in the step, the step is spoiled."""
        others = self._step is not None and self._step.entered > 1
        self.abandon()
        if others:
            self._start(self._trainable())
            assert self._step is not None
            self._step.entered, self._step.spoiled = 1, True

    def abandon(self) -> None:
        """Forget a step that ends without the optimiser moving."""
        self._open.close()
        self._batch = self._step = None
        self.capture.forget()
        self.curvatures.abandon()
        if self._proxy is not None:
            self._proxy.remove()

    def state(self) -> dict[str, Any]:
        """Return what the next step needs of the ones before."""
        return {
            "last_update": self.motion.state(),
            "usual_batches": self.usual_batches,
            "curvatures": self.curvatures.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.motion.load(state["last_update"])
        self.usual_batches = state["usual_batches"]
        self.curvatures.load_state(state["curvatures"])

    def close(self) -> None:
        """Remove every trace from the model."""
        self.abandon()
        self.capture.disarm()
        self.curvatures.close()
        self.tapes.forget()
        self.motion.remember({})
        self._asked, self._asked_for = Requests(), (None, False, False)
        self._plan = self._kind = None

    # -- inside a step ----------------------------------------------------------------------------------

    def _trainable(self) -> dict[str, Tensor]:
        if self.roster.refresh():
            frozen = Coverage(Way.FROZEN, "does not require gradients")
            self.cover(dict.fromkeys(self.roster.frozen, frozen))
        return self.roster.trainable

    def _start(self, parameters: dict[str, Tensor], own: bool = False) -> Step:
        step = Step(parameters, Table(parameters), Accumulated(parameters))
        step.plain = own and self._plain_step and not any(p.grad is not None for p in parameters.values())
        self._step = step
        return step

    def _keep_parameters(self, step: Step) -> None:
        """Copy the parameters before the step, where they are needed and no recording does so."""
        wanted = Known.PARAMETERS in self._asked.needs or (self._asked.moves and not step.plain)
        if wanted and not step.before and step.replay is None:
            step.before = _copied(step.parameters)

    @property
    def _reads_gradients(self) -> bool:
        unchecked = self._batch is not None and not self._batch.plan.checked
        return unchecked or self._asked.reads_gradients

    def _memory(self) -> int:
        """Return how many bytes may be kept from a backward pass until the optimiser has moved."""
        if self.memory is None:  # what we keep ourselves must not count from then on
            cuda = self._device.type == "cuda"
            self.memory = max(SMALL, torch.cuda.max_memory_allocated(self._device) // 8) if cuda else HOLD
        return self.memory

    def _asked_of(self, step: Step, plan: Plan) -> Asked:
        return Asked(self._asked.statistics, step.parameters, plan, len(step.losses[-1]), step.plain)

    def _watch_or_collect(self, step: Step, plan: Plan, losses: Tensor | None, examples: int) -> None:
        if self._tapeable(step):
            uses = self.capture.uses()
            shapes = tuple((use.name, *(x.shape for x in use.inputs)) for use in uses)
            self._kind = (id(plan), self._asked.needs, shapes, step.plain)
            asked, last = self._asked_of(step, plan), self.motion.recalled()
            step.replay = self.tapes.begin(self._kind, asked, last, partial(self._loose, step, plan, losses))
            if step.replay is not None:
                step.last_factors = {name: factor for name, (_, factor) in last.items()}
                step.table.begin(examples, plan.used(step.parameters), {})
                return
            numbers = {id(use): k for use, k in self.capture.numbered()}
            step.recording = self.tapes.begin_recording(self._kind, asked, uses, numbers, self._memory())
        self._watch(step, plan, losses, examples)

    def _loose(self, step: Step, plan: Plan, losses: Tensor | None, tape: Tape) -> Batch:
        """Return what evaluates the parameters that a recording does not."""
        parameters = {name: p for name, p in step.parameters.items() if name in tape.loose}
        batch = Batch(
            self.capture,
            plan,
            parameters,
            tape.asked.examples,
            Table(parameters),
            tape.asked.individual,
            {name: (place, 1.0) for name, place in tape.last.items()},
            [] if tape.cut else tape.asked.late,
            step.accumulated.sum_of,
            self.fast,
            self._memory(),
        )
        if losses is not None:
            batch.serve(losses)
        return batch

    def _tapeable(self, step: Step) -> bool:
        """Say whether the step is of the simplest kind: one batch, one process, objective ours, gradients new."""
        simple = step.own and self.usual_batches == 1 and step.entered == 1 and not step.accumulated.anything
        if not Recorder.serves(self._device) or (
            LAST in self._asked.individual and not self.motion.recalled()
        ):
            return False
        return simple and not self._asked.vectors and not any(s.keeps for s in self._asked.individual)

    def _keeps_factors(self, step: Step) -> bool:
        """Say whether the coming step is needed later, for projections only, and may be kept as factors."""
        wanted = UPDATE in self._asked.needs and Known.UPDATES not in self._asked.needs
        return wanted and step.plain and self._device.type == "cpu"  # a GPU has it in a recording

    def _watch(
        self, step: Step, plan: Plan, losses: Tensor | None, examples: int, begun: bool = False
    ) -> None:
        several = self.usual_batches != 1 or self.ranks is not None
        step.immediate = not several
        waits: set[Statistic] = {MEAN} if several else set()
        if not step.plain:
            waits |= {UPDATE}
        left_out = waits | ({UPDATE} if step.plain else set()) | ({Total()} if step.own else set())
        now = [s for s in self._asked.individual if s not in left_out]
        batch = Batch(
            self.capture,
            plan,
            step.parameters,
            examples,
            step.table,
            now,
            self.motion.recalled() if LAST in now else {},
            [s for s in self._asked.individual if s in waits],
            step.accumulated.sum_of if step.own else _unknown,
            self.fast,
            self._memory(),
            begun,
            self._keeps_factors(step),
        )
        step.batches.append(batch)
        self._batch = batch
        if losses is not None:
            batch.serve(losses)

    def _weigh(self, weights: Tensor, losses: Tensor) -> None:
        """Take note of the objective's weights, inside the user's backward pass: must not raise."""
        if self._weighed:  # our own passes below come through here again
            return
        self._weighed = True
        with self._harmless("weighing the examples"):
            self._take_weights(weights.detach(), losses)

    @contextmanager
    def _harmless(self, doing: str) -> Iterator[None]:
        """Keep what fails inside a hook of ours away from the user's pass; the step is then given up."""
        try:
            yield
        except Exception as failure:
            self._failures.append(f"{doing}: {type(failure).__name__}: {failure}")
            if self._step is not None:
                self._step.spoiled = True

    def failures(self) -> list[str]:
        """Return what has failed inside hooks since the last call."""
        found, self._failures = self._failures, []
        return found

    def _take_weights(self, weights: Tensor, losses: Tensor) -> None:
        step, batch = self._step, self._batch
        # Backward passes of our own, inside the user's:
        with self.capture.receive(None), self._full_precision():
            if batch is not None:
                batch.weigh(weights, losses)
                if step is not None and batch.keep is not None:
                    step.losses[-1] = step.losses[-1][batch.keep]
                    self.curvatures.cancel()
                    self.curvatures.enter(losses, batch.plan, step.table, self.usual_batches == 1, batch.keep)
            if step is not None and self._reads_gradients:
                step.accumulated.weigh(weights, losses)

    def _variances(self) -> dict[Need, float]:
        found = self.curvatures.variances
        if self.ranks is None:
            return found
        ranks = self.ranks
        return {
            n: float(ranks.sum(torch.tensor(found.get(n, 0.0), dtype=torch.float64)))
            for n in self._asked.diagonals
        }


def _copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in parameters.items()}


def _by_factors(step: Step, updates: Mapping[str, tuple[Tensor, float]]) -> Vectors:
    """Return those multiples of the mean gradient that are smaller as factors: ``.grad`` need not be kept for them."""
    if not step.plain or step.replay is not None or len(step.batches) != 1:
        return {}
    found = step.batches[0].factored
    return {
        n: (found[n], factor / step.examples) for n, (_, factor) in updates.items() if n in found and factor
    }


def _unknown(name: str) -> None:
    """Say that a parameter's summed gradient is not known from ``.grad``."""
