"""The engine of one model: watches the backward passes of a step and hands out what was asked for.

A step goes through fixed stages, each called by the session: ``begin(needs)``, then for every micro-batch
``enter(losses)`` and ``leave()``, then ``before_update()`` when the optimiser is about to move, and ``finish()``
when it has. Nothing is kept from one step to the next but the last update and the last eigenvector.

What must wait for a direction known later (the mean gradient of several micro-batches, the optimiser's step) keeps
the layers' inputs and output gradients, N·T·(I+O) numbers, never N·D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.accumulated import Accumulated
from cockpit.engine.batch import Batch
from cockpit.engine.capture import Capture
from cockpit.engine.coverage import Coverage, Plan, Way
from cockpit.engine.graph import graphs_kept
from cockpit.engine.needs import Diagonal, Known, Need, individual_gradients
from cockpit.engine.plans import Plans
from cockpit.engine.proxy import Proxy
from cockpit.engine.ranks import Ranks
from cockpit.engine.statistics import Direction, Projection, Statistic, Total
from cockpit.engine.step import Observed, Step
from cockpit.engine.step_curvature import Curvatures
from cockpit.engine.table import Table

MEAN, UPDATE, LAST = (Projection(d) for d in (Direction.MEAN, Direction.UPDATE, Direction.LAST_UPDATE))


class Engine:
    """Watches one model; ``root`` is what the training calls, if that is a wrapper around it."""

    def __init__(
        self, model: nn.Module, ranks: Ranks | None = None, seed: int = 0, root: nn.Module | None = None
    ) -> None:
        self.model, self.ranks = model, ranks
        self.capture = Capture(model, root)
        self.curvatures = Curvatures(self.capture, ranks, seed)
        self.last_update: dict[str, Tensor] = {}
        self.coverage: dict[str, Coverage] = {}
        self.usual_batches: int | None = None
        self.plans = Plans(model, self.capture)
        self._needs: frozenset[Need] = frozenset()
        self._step: Step | None = None
        self._open = ExitStack()
        self._batch: Batch | None = None
        self._proxy: Proxy | None = None
        self._weighed = False
        self._failures: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._seen_early = False
        self.blind = False
        """Whether backward passes come without losses."""

    # -- stages -----------------------------------------------------------------------------------------

    def begin(self, needs: frozenset[Need]) -> None:
        """Prepare for a step that asks for these needs; with none, nothing is hooked."""
        if self.ranks is not None and Known.GRADIENTS in needs:
            needs |= {Total()}
        if needs & {MEAN}:
            needs |= {Total()}
        if not self.last_update:
            needs -= {LAST}
        self._needs, self._step = needs, None
        statistics = {n for n in needs if isinstance(n, Statistic)}
        self.capture.keep_outputs = self.blind or any(isinstance(n, Diagonal) for n in statistics)
        if statistics or (needs and self.capture.on_outputs is not None):
            self.capture.arm()
        elif self.capture.armed:
            self.capture.disarm()
        self.curvatures.begin(needs)

    @property
    def busy(self) -> bool:
        """Whether anything is asked of this step."""
        return bool(self._needs)

    @property
    def begun(self) -> bool:
        """Whether a backward pass of this step has been watched."""
        return self._step is not None and self._step.entered > 0

    def enter(self, losses: Tensor | None) -> None:
        """Watch a backward pass that is about to run, of these losses if they are known."""
        if losses is not None:
            self._enter(losses, len(losses), known=True)
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
            step = self._step or self._start()
            self._seen = step.gradient_versions()
            self._seen_early = True
            if Known.GRADIENTS in self._needs:
                step.accumulated.snapshot()

    def _enter(self, losses: Tensor | None, examples: int, known: bool) -> None:
        with self._full_precision():
            self._prepare(losses, examples, known)

    def _full_precision(self) -> torch.autocast:
        """Switch autocast off: statistics are computed in float32 or better, whatever the model runs in."""
        return torch.autocast(next(self.model.parameters()).device.type, enabled=False)

    def _prepare(self, losses: Tensor | None, examples: int, known: bool) -> None:
        early = self.capture.early()  # and from here on the passes are our own
        step = self._step or self._start()
        step.entered += 1
        if not self._seen_early:
            self._seen = step.gradient_versions()
        self._seen_early = False
        if losses is not None and known:
            step.losses.append(losses.detach())
        statistics = self._individual()
        plan = None
        if statistics or self._diagonals():
            plan = self.plans(losses, examples, step.parameters)
            self.coverage.update(plan.ways)
            self._watch(step, plan, losses, examples, statistics)
        if self._reads_gradients:
            step.accumulated.enter(examples)
        if losses is not None and known:
            alone = self.usual_batches == 1
            self.curvatures.enter(losses, plan, step.table, alone)
            if self.curvatures.eigen and not alone:
                self._open.enter_context(graphs_kept())
        # Hooks last of all: the passes above were ours, only the user's is to be reduced.
        if losses is not None and known:
            self._weighed = False
            self._open.callback(losses.register_hook(lambda w: self._weigh(w, losses)).remove)
        if self._batch is not None:
            for use, grads in early:
                self._batch.receive(use, grads)
            self._open.enter_context(self.capture.receive(self._batch.receive))

    def leave(self) -> None:
        """Note that the backward pass is over."""
        step, batch = self._step, self._batch
        self._open.close()
        if (failure := self.capture.failure) is not None:
            self._failures.append(f"in a hook: {type(failure).__name__}: {failure}")
        if step is not None:
            changed = self._changed(step)
            if not changed and step.entered:
                self._cancel(step)
            else:
                self._end(step, batch, changed)
        self._batch = None
        self.capture.forget()
        if self._proxy is not None:
            self._proxy.remove()

    def _end(self, step: Step, batch: Batch | None, changed: set[str]) -> None:
        if batch is not None:
            batch.end()
            # (Data-parallel wrappers fill in gradients of parameters that only other ranks use.)
            for name in set(batch.plan.names(Way.UNUSED)) & changed if self.ranks is None else ():
                reason = "its gradient came from a backward pass inside the backward pass"
                step.table.begin_using(name, reason)
                self.coverage[name] = Coverage(Way.NONE, reason)
        if self._reads_gradients:
            grown = step.accumulated.leave()
            if batch is not None:
                batch.confirm(grown)

    def _cancel(self, step: Step) -> None:
        """Take back a micro-batch of which no backward pass was made."""
        step.entered -= 1
        step.notes.append(("nothing_watched", "a watched block ended without a backward pass"))
        if step.losses:
            step.losses.pop()
        if self._batch is not None:
            step.batches.pop()
            step.table.drop()
        self.curvatures.cancel()

    def _changed(self, step: Step) -> set[str]:
        """Return the parameters whose ``.grad`` is not what it was on entering."""
        now = step.gradient_versions()
        return {name for name, version in now.items() if self._seen.get(name) != version}

    def before_update(self) -> None:
        """Compute what needs all micro-batches and the parameters where they still are."""
        if self._step is not None:
            self.curvatures.before_update(self._step.parameters)

    def finish(self, moved: bool) -> Observed | None:
        """Compute the rest once the optimiser has moved (or the step was given up) and hand everything out."""
        step, self._step = self._step, None
        seen = step is not None and step.entered > 0 and not step.spoiled
        if self.ranks is not None and not self.ranks.all(seen):
            return None  # what one rank has not seen, the others must not wait for
        if step is None or not seen:
            return None
        with self._full_precision():
            return self._finished(step, moved)

    def nothing(self) -> Observed:
        """Return the outcome of a step of which nothing was asked."""
        return Observed(0, Table({}), {}, {}, {}, {}, [])

    def _finished(self, step: Step, moved: bool) -> Observed:
        table, ranks, needs = step.table, self.ranks, self._needs
        statistics = sorted((n for n in needs if isinstance(n, Statistic)), key=repr)
        updates = self._updates(step) if moved else {}
        late = {MEAN, UPDATE} & set(statistics)
        table.close([s for s in statistics if s not in late], ranks)
        examples = step.examples
        if ranks is not None:
            examples = int(ranks.sum(torch.tensor(float(examples))))
        if MEAN in late and not step.immediate:
            mean = {n: t / max(1, examples) for n, t in table.by_parameter(Total()).items()}
            self._project(step, MEAN, mean)
        elif MEAN in late and len(step.batches) > 1:
            table.void(MEAN, "needs_full_batch: more micro-batches came than in the step before")
        if UPDATE in late:
            self._project(step, UPDATE, updates)
        table.close([s for s in (MEAN, UPDATE) if s in late], ranks)
        self.usual_batches = step.entered
        self.last_update = updates
        known = step.known(Known.GRADIENTS in needs, updates, examples, ranks)
        return Observed(
            examples,
            table,
            known,
            self.curvatures.eigenvalues,
            self.curvatures.methods,
            self._variances(),
            step.all_notes(known),
        )

    def interrupt(self) -> None:
        """Forget a pass that the user's code broke off; with others before it in the step, the step is spoiled."""
        others = self._step is not None and self._step.entered > 1
        self.abandon()
        if others:
            self._start()
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
            "last_update": dict(self.last_update),
            "usual_batches": self.usual_batches,
            "curvatures": self.curvatures.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.last_update = dict(state["last_update"])
        self.usual_batches = state["usual_batches"]
        self.curvatures.load_state(state["curvatures"])

    def close(self) -> None:
        """Remove every trace from the model."""
        self.abandon()
        self.capture.disarm()
        self.curvatures.close()
        self.last_update.clear()

    # -- inside a step ----------------------------------------------------------------------------------

    def _start(self) -> Step:
        parameters: dict[str, Tensor] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        step = Step(parameters, Table(parameters), Accumulated(parameters))
        if self._needs & {Known.PARAMETERS, Known.UPDATES, UPDATE}:
            step.before = {n: p.detach().clone() for n, p in parameters.items()}
            step.table.values = step.before
        frozen = (n for n, p in self.model.named_parameters() if not p.requires_grad)
        self.coverage.update({n: Coverage(Way.FROZEN, "does not require gradients") for n in frozen})
        self._step = step
        return step

    @property
    def _reads_gradients(self) -> bool:
        unchecked = self._batch is not None and not self._batch.plan.checked
        return Known.GRADIENTS in self._needs or unchecked

    def _individual(self) -> list[Statistic]:
        found = [n for n in self._needs if isinstance(n, Statistic) and individual_gradients(n)]
        return sorted(found, key=repr)

    def _diagonals(self) -> list[Diagonal]:
        return [n for n in self._needs if isinstance(n, Diagonal)]

    def _watch(
        self, step: Step, plan: Plan, losses: Tensor | None, examples: int, statistics: list[Statistic]
    ) -> None:
        several = self.usual_batches != 1 or self.ranks is not None
        step.immediate = not several
        waits = {UPDATE} if step.immediate else {UPDATE, MEAN}
        late = [s for s in statistics if s in waits]
        now = [s for s in statistics if s not in waits]
        directions: Mapping[Direction, Mapping[str, Tensor]] = {Direction.LAST_UPDATE: self.last_update}
        batch = Batch(self.capture, plan, step.parameters, examples, step.table, now, directions, late)
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

    # -- after a step -----------------------------------------------------------------------------------

    def _updates(self, step: Step) -> dict[str, Tensor]:
        if not self._needs & {Known.UPDATES, UPDATE}:
            return {}
        return {n: p.detach() - step.before[n] for n, p in step.parameters.items()}

    def _project(self, step: Step, statistic: Statistic, directions: Mapping[str, Tensor]) -> None:
        for batch in step.batches:
            batch.project(statistic, directions)

    def _variances(self) -> dict[Need, float]:
        found = self.curvatures.variances
        if self.ranks is None:
            return found
        ranks = self.ranks
        needs = sorted(self._diagonals(), key=repr)
        return {n: float(ranks.sum(torch.tensor(found.get(n, 0.0), dtype=torch.float64))) for n in needs}
