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
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.accumulated import Accumulated, altered
from cockpit.engine.batch import Batch
from cockpit.engine.capture import Capture, without_autocast
from cockpit.engine.coverage import Coverage, Plan, Way
from cockpit.engine.derived import Separation, squared_lengths
from cockpit.engine.ending import SEVERAL, Ending, Reader, give_up_update
from cockpit.engine.factored import Vectors
from cockpit.engine.graph import graphs_kept
from cockpit.engine.motion import Motion
from cockpit.engine.needs import Known, Need
from cockpit.engine.observed import Observed
from cockpit.engine.plans import Plans
from cockpit.engine.proxy import Proxy
from cockpit.engine.ranks import Ranks
from cockpit.engine.replay import Replay
from cockpit.engine.requests import MEAN, UPDATE, Requests, requests
from cockpit.engine.roster import Roster
from cockpit.engine.statistics import Total
from cockpit.engine.step import Step
from cockpit.engine.step_curvature import Curvatures
from cockpit.engine.table import Table
from cockpit.engine.watch import Watch
from cockpit.engine.weights import Weights


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
        self.roster = Roster(model)
        self.plans = Plans(model, self.capture)
        self.watch = Watch(self.capture, self.motion, self._device, fast, memory)
        self._asked = Requests()
        self._asked_for: tuple[Any, bool, bool] = (None, False, False)
        self._step: Step | None = None
        self._open = ExitStack()
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
        return self.motion.known and self._alone

    @property
    def _readable(self) -> bool:
        """Whether the step will be known from the optimiser's state."""
        return self.fast and self.motion.readable

    @property
    def _alone(self) -> bool:
        """Whether neither another micro-batch nor another process is expected."""
        return self.usual_batches == 1 and self.ranks is None

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
            self.watch.open(step, self._asked, plan, losses, examples, self._alone)
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
        self._open.enter_context(self.watch.listening(step, losses, early))

    def _one_more(self, step: Step, own: bool) -> None:
        """Make ready for another micro-batch of the step, if one was not expected."""
        if step.replay is not None:
            self._failures.append("a second micro-batch came unexpectedly: nothing of this step is kept")
            step.spoiled, step.replay, self.usual_batches = True, None, None
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
                self._end(step, self.watch.batch, changed)
                if step.recording is not None and not self._failures:
                    with self._full_precision():
                        self.watch.record(step)
        self.watch.batch = None
        self.capture.forget()
        if self._proxy is not None:
            self._proxy.remove()

    def _replayed(self, step: Step, replay: Replay) -> bool:
        assert self._plan is not None
        with self._full_precision(), torch.no_grad():
            done = self.watch.end_replay(step, replay, self._asked, self._plan)
        self._keep_parameters(step)
        if step.spoiled:
            self._failures.append(
                f"replaying a step: {self.watch.tapes.failure}; nothing of this step is kept"
            )
        return done

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
        if self.watch.batch is not None:
            step.batches.pop()
        if self.watch.batch is not None or step.replay is not None:
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

    def finish(
        self, moved: bool, rates: Mapping[str, float] | None = None, taken: Reader = lambda parameters: None
    ) -> Observed | None:
        """Compute the rest once the optimiser has moved (or the step was given up) and hand everything out.

        ``rates`` are the learning rates of the parameters, where the optimiser is `plain`; ``taken`` reads the step
        from its state, where it is `readable`.
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
                observed = self.watch.tapes.observed(step, rates)
                updates = self.watch.tapes.last_update(step, rates)
                if step.plain and rates is None:
                    give_up_update(step)
            else:
                reader = taken if self._readable else None
                observed, updates = Ending(step, self._asked, self.ranks, rates, reader).observed(moved)
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
        self.watch.batch = self._step = None
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
        self.watch.tapes.forget()
        self.motion.remember({})
        self._asked, self._asked_for = Requests(), (None, False, False)
        self._plan = None

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
        told = step.plain or self._readable
        wanted = Known.PARAMETERS in self._asked.needs or (self._asked.moves and not told)
        if wanted and not step.before and step.replay is None and not step.spoiled:
            step.before = _copied(step.parameters)

    @property
    def _reads_gradients(self) -> bool:
        unchecked = self.watch.batch is not None and not self.watch.batch.plan.checked
        return unchecked or self._asked.reads_gradients

    def _weigh(self, weights: Tensor, losses: Tensor) -> None:
        """Take note of the objective's weights, inside the user's backward pass: must not raise."""
        if self._weighed:  # our own passes below come through here again
            return
        self._weighed = True
        with self._harmless("weighing the examples"):
            self._take_weights(weights, losses)

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
        step, known = self._step, Weights.read(weights)
        if step is None:
            return
        # Backward passes of our own, inside the user's:
        with self.capture.receive(None), self._full_precision():
            if self._plan is not None:
                self.watch.weigh(step, self._asked, self._plan, known, losses)
                self._keep_parameters(step)  # which a recording would have done
            batch = self.watch.batch
            if batch is not None and batch.keep is not None:
                step.losses[-1] = step.losses[-1][batch.keep]
                self.curvatures.cancel()
                self.curvatures.enter(losses, batch.plan, step.table, self.usual_batches == 1, batch.keep)
            if self._reads_gradients:
                step.accumulated.weigh(known, losses)

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
