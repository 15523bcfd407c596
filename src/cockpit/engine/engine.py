"""The engine of one model: watches the backward passes of a step and hands out what was asked for.

A step goes through fixed stages, each called by the session: ``begin(needs)``, then for every micro-batch
``enter(losses)`` and ``leave()``, then ``before_update()`` when the optimiser is about to move, and ``finish()``
when it has. Nothing is kept from one step to the next but the last update and the last eigenvector.

What must wait for a direction known later (the mean gradient of several micro-batches, the optimiser's step) keeps
the layers' inputs and output gradients, N·T·(I+O) numbers, never N·D.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.answers.requests import UPDATE, Requests, requests
from cockpit.engine.answers.table import Table
from cockpit.engine.coverage.coverage import Coverage
from cockpit.engine.curvature.step_curvature import Curvatures
from cockpit.engine.derived import Separation
from cockpit.engine.needs import Need
from cockpit.engine.numbers.lengths import squared_lengths
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.proxy import Proxy
from cockpit.engine.steps.ending import CLIPPED, Ending, Reader, give_up_update
from cockpit.engine.steps.factored import Vectors
from cockpit.engine.steps.motion import Motion
from cockpit.engine.steps.passes import Passes
from cockpit.engine.steps.step import Step
from cockpit.engine.steps.versions import gradient_versions

LATELY = 8
"""How many kinds of requests are remembered."""


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
        self.model, self.ranks = model, ranks
        self.capture = Capture(model, root)
        records = fast and Recorder.serves(next(model.parameters()).device)
        self.curvatures = Curvatures(self.capture, ranks, seed, self._recorder if records else None, memory)
        self.motion = Motion()
        self.passes = Passes(model, self.capture, self.curvatures, self.motion, ranks, fast, memory)
        self._asked_for: tuple[Any, bool, bool] = (None, False, False)
        self._sorted: dict[tuple[frozenset[Need], bool, bool], Requests] = {}
        """What was asked for lately: at intervals, kinds of step alternate."""
        self._proxy: Proxy | None = None
        self._blind = False
        """Whether backward passes come without losses."""

    def _recorder(self) -> Recorder:
        return self.passes.watch.tapes.recorder.another()

    @property
    def coverage(self) -> dict[str, Coverage]:
        """How parameters are served; another object whenever that has changed."""
        return self.passes.coverage

    def begin(self, needs: frozenset[Need]) -> None:
        """Prepare for a step that asks for these needs; with none, nothing is hooked."""
        key = (needs, bool(self.motion.last), self.passes.plain_step)
        if key[0] is not self._asked_for[0] or key[1:] != self._asked_for[1:]:
            self._asked_for = key
            if key not in self._sorted:
                if len(self._sorted) >= LATELY:
                    self._sorted.clear()
                self._sorted[key] = requests(needs, self.ranks is not None, *key[1:])
            self.passes.asked = self._sorted[key]
        self.passes.step = None
        asked = self.passes.asked
        self.capture.keep_outputs = self._blind or bool(asked.diagonals)
        if asked.individual or asked.diagonals or (needs and self.capture.on_outputs is not None):
            self.capture.arm()
        elif self.capture.armed:
            self.capture.disarm()
        self.curvatures.begin(asked.needs, asked.given)

    @property
    def busy(self) -> bool:
        """Whether anything is asked of this step."""
        return bool(self.passes.asked.needs)

    @property
    def begun(self) -> bool:
        """Whether a backward pass of this step has been watched."""
        return self.passes.step is not None and self.passes.step.entered > 0

    def enter(self, losses: Tensor | None, own: bool = False) -> None:
        """Watch a backward pass that is about to run, of these losses if they are known.

        ``own`` says that the objective is their plain mean and nothing else.
        """
        if losses is not None:
            self.passes.enter(losses, len(losses), known=True, own=own)
            return
        self._blind = True
        outputs, examples = list(self.capture.outputs), self.capture.examples
        if not (outputs and self.await_outputs(outputs, examples, self._blindly)):
            self.passes.enter(None, max(1, examples), known=False)

    def enter_proxy(self, proxy: Tensor, examples: int) -> None:
        """Watch a backward pass that has reached the model's outputs."""
        self.passes.enter(proxy, examples, known=False)

    def await_outputs(
        self, outputs: list[Tensor], examples: int, ready: Callable[[Tensor, int], None]
    ) -> bool:
        """Call ``ready`` with stand-in losses when a backward pass reaches these outputs; False if it cannot."""
        if self._proxy is not None:
            self._proxy.remove()
        self.capture.expect()
        self._proxy = Proxy(outputs, examples, ready, self.passes.reached)
        return self._proxy.waiting

    def _blindly(self, proxy: Tensor, examples: int) -> None:
        """A backward pass without losses has reached the outputs."""
        with self.passes.harmless("preparing to watch"):
            self.passes.enter(proxy, examples, known=False)

    def leave(self) -> None:
        """Note that the backward pass is over."""
        self.passes.leave()
        if self._proxy is not None:
            self._proxy.remove()

    def before_update(self) -> None:
        """Compute what needs all micro-batches and the parameters where they still are."""
        step = self.passes.step
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
        if self.passes.asked.joint:
            step.table.fill(self.passes.asked.joint, everywhere=self.ranks is not None)
        for statistic in self.passes.asked.statistics:
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
        step, self.passes.step = self.passes.step, None
        seen = step is not None and step.entered > 0 and not step.spoiled
        if self.ranks is not None and not self.ranks.all(seen):
            return None  # what one rank has not seen, the others must not wait for
        if step is None or not seen:
            return None
        touched = step.touched or gradient_versions(step.parameters) != step.left[0]
        rates = None if touched else rates
        if step.foresight is not None:
            if touched or not step.foresight.holds():
                step.table.void(UPDATE, CLIPPED)
            self.motion.surprised = step.table.is_void(UPDATE)
        with self.passes.full_precision(), torch.set_grad_enabled(False):
            if step.replay is not None:
                observed = self.passes.watch.tapes.observed(step, rates, self.curvatures.replayed)
                updates = self.passes.watch.tapes.last_update(step, rates)
                if step.plain and rates is None:
                    give_up_update(step)
            else:
                reader = taken if self.passes.readable else None
                observed, updates = Ending(step, self.passes.asked, self.ranks, rates, reader).observed(moved)
                self.passes.usual_batches = step.entered
                if step.table.is_void(UPDATE):  # slopes at its end alone tell nothing
                    updates = {}
            self.motion.remember({**updates, **_by_factors(step, updates)})
            observed.eigenvalues, observed.methods = self.curvatures.eigenvalues, self.curvatures.methods
            observed.variances, observed.notes = self._variances(), step.all_notes()
            observed.table.shrink(self.passes.asked.given)  # so that steps may wait for each other
            observed.send()
        return observed

    def nothing(self) -> Observed:
        """Return the outcome of a step of which nothing was asked."""
        return Observed(0, Table({}), {})

    def interrupt(self) -> None:
        """Forget a pass that the user's code broke off; with others before it in the step, the step is spoiled."""
        step = self.passes.step
        self.abandon()
        if step is not None and step.entered > 1:
            again = self.passes.start(self.passes.trainable())
            again.entered, again.spoiled = 1, True

    def abandon(self) -> None:
        """Forget a step that ends without the optimiser moving."""
        self.passes.abandon()
        if self._proxy is not None:
            self._proxy.remove()

    def failures(self) -> list[str]:
        """Return what has failed inside hooks since the last call."""
        found, self.passes.failures = self.passes.failures, []
        return found

    def state(self) -> dict[str, Any]:
        """Return what the next step needs of the ones before."""
        return {
            "last_update": self.motion.state(),
            "untouched": self.motion.untouched,
            "surprised": self.motion.surprised,
            "held": self.passes.watch.held,
            "usual_batches": self.passes.usual_batches,
            "curvatures": self.curvatures.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.motion.load(state["last_update"])
        self.motion.untouched = state.get("untouched")
        self.motion.surprised = state.get("surprised", False)
        self.passes.watch.held = state.get("held", 0)
        self.passes.usual_batches = state["usual_batches"]
        self.curvatures.load_state(state["curvatures"])

    def close(self) -> None:
        """Remove every trace from the model."""
        self.abandon()
        self.capture.close()
        self.curvatures.close()
        self.passes.close()
        self.motion.remember({})
        self._asked_for = (None, False, False)
        self._sorted.clear()
        if self.ranks is not None:
            self.ranks.close()

    def _variances(self) -> dict[Need, float]:
        found = self.curvatures.variances
        if self.ranks is None:
            return found
        ranks = self.ranks
        return {
            n: float(ranks.sum(torch.tensor(found.get(n, 0.0), dtype=torch.float64)))
            for n in self.passes.asked.diagonals
        }


def _by_factors(step: Step, updates: Mapping[str, tuple[Tensor, float]]) -> Vectors:
    """Return those multiples of the mean gradient that are smaller as factors: ``.grad`` need not be kept for them."""
    if not step.plain or step.replay is not None or len(step.batches) != 1:
        return {}
    found = step.batches[0].recall.factored
    return {
        n: (found[n], factor / step.examples) for n, (_, factor) in updates.items() if n in found and factor
    }
