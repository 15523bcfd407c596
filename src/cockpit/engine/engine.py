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
from cockpit.engine.batch import HOLD, Batch
from cockpit.engine.capture import Capture, Use, without_autocast
from cockpit.engine.coverage import Coverage, Plan, Way
from cockpit.engine.derived import Derived, Folded, Length, MeanNorm2, Separation, squared_lengths
from cockpit.engine.graph import graphs_kept
from cockpit.engine.histograms import Histogram2d
from cockpit.engine.needs import Diagonal, Known, Need
from cockpit.engine.plans import Plans
from cockpit.engine.proxy import Proxy
from cockpit.engine.ranks import Ranks
from cockpit.engine.roster import Roster
from cockpit.engine.statistics import Direction, Projection, Statistic, Total
from cockpit.engine.step import Observed, Step
from cockpit.engine.step_curvature import Curvatures
from cockpit.engine.table import Table
from cockpit.engine.tape import Asked, Tape
from cockpit.engine.tapes import Tapes

MEAN, UPDATE, LAST = (Projection(d) for d in (Direction.MEAN, Direction.UPDATE, Direction.LAST_UPDATE))

SMALL = 2**26
"""How many bytes may always be kept on a device for the step; more than that up to an eighth of the peak."""
SEVERAL = "needs_full_batch: more micro-batches came than in the step before"


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
        self.last_update: dict[str, tuple[Tensor, float]] = {}
        """The step before, as vectors and factors (a plain step is a multiple of the gradient)."""
        self.plain = False
        """Whether the optimiser moves against ``.grad``, times a rate, and in no other way."""
        self.coverage: dict[str, Coverage] = {}
        self.usual_batches: int | None = None
        self._device = next(model.parameters()).device
        self.memory = memory
        self.roster = Roster(model)
        self.plans = Plans(model, self.capture)
        self.tapes = Tapes(self.capture)
        self._kind: Any = None
        self._needs: frozenset[Need] = frozenset()
        self._step: Step | None = None
        self._open = ExitStack()
        self._batch: Batch | None = None
        self._proxy: Proxy | None = None
        self._weighed = False
        self._failures: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._seen_early = False
        self._last_versions: dict[str, int] = {}
        self._plan: Plan | None = None
        self._statistics: list[Statistic] = []
        self._individual: list[Statistic] = []
        self._diagonals: list[Diagonal] = []
        self._served: list[Statistic] = []
        self._lengths = self._wants_sums = self._reads = False
        self._known: tuple[frozenset[Need] | None, bool, bool] = (None, False, False)
        self._untouched: bool | None = None
        """Whether gradients reach the optimiser as the backward pass left them; None: not seen yet."""
        self.blind = False
        """Whether backward passes come without losses."""

    # -- stages -----------------------------------------------------------------------------------------

    def begin(self, needs: frozenset[Need]) -> None:
        """Prepare for a step that asks for these needs; with none, nothing is hooked."""
        known = (needs, bool(self.last_update), self._plain_step)
        if known != self._known or needs is not self._known[0]:
            self._known = known
            self._ask(needs)
        self._step = None
        self.capture.keep_outputs = self.blind or bool(self._diagonals)
        if self._individual or self._diagonals or (needs and self.capture.on_outputs is not None):
            self.capture.arm()
        elif self.capture.armed:
            self.capture.disarm()
        self.curvatures.begin(self._needs)

    def _ask(self, needs: frozenset[Need]) -> None:
        """Sort the needs by how they are served."""
        vectors = {n for n in needs if isinstance(n, Derived) and Total() in n.sources} - {MeanNorm2()}
        self._wants_sums = bool(vectors) or bool(needs & {Total(), Known.GRADIENTS})
        self._needs = needs = self._expanded(needs) if needs else needs
        self._statistics = sorted((n for n in needs if isinstance(n, Statistic)), key=repr)
        self._individual = [n for n in self._statistics if n.individual and not isinstance(n, Folded)]
        self._diagonals = [n for n in self._statistics if isinstance(n, Diagonal)]
        self._lengths = bool(needs & {MeanNorm2(), Length(Known.GRADIENTS), Length(Known.UPDATES)})
        lengths = self._lengths or self._wants_sums or MEAN in needs
        self._reads, self._served = lengths, [s for s in self._statistics if not isinstance(s, Folded)]

    def _expanded(self, needs: frozenset[Need]) -> frozenset[Need]:
        """Add what the needs themselves need."""
        needs |= {source for n in needs if isinstance(n, Derived) for source in n.sources}
        if self.ranks is not None and needs & {Known.GRADIENTS, Length(Known.GRADIENTS)}:
            needs |= {Total()}
        if Known.GRADIENTS in needs:
            needs |= {Length(Known.GRADIENTS)}
        if MEAN in needs:
            needs |= {Total()}
        if not self.last_update:
            needs -= {LAST}
        if self._plain_step and needs & {UPDATE, Length(Known.UPDATES)}:
            needs |= (
                {MEAN, Total(), Length(Known.GRADIENTS)} if UPDATE in needs else {Length(Known.GRADIENTS)}
            )
        return needs

    @property
    def _plain_step(self) -> bool:
        """Whether the coming update is known from the gradient: one batch, one process, plain gradient descent."""
        return bool(self._untouched) and self.plain and self.usual_batches == 1 and self.ranks is None

    @property
    def busy(self) -> bool:
        """Whether anything is asked of this step."""
        return bool(self._needs)

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
            step = self._step or self._start()
            self._seen = step.gradient_versions()
            self._seen_early = True
            if self._lengths or Known.GRADIENTS in self._needs:
                step.accumulated.snapshot()

    def _enter(self, losses: Tensor | None, examples: int, known: bool, own: bool = False) -> None:
        with self._full_precision():
            self._prepare(losses, examples, known, own)

    def _full_precision(self) -> AbstractContextManager[Any]:
        """Switch autocast off: statistics are computed in float32 or better, whatever the model runs in."""
        return without_autocast(self._device.type)

    def _prepare(self, losses: Tensor | None, examples: int, known: bool, own: bool) -> None:
        early = self.capture.early()  # and from here on the passes are our own
        own = own and self.fast and self.ranks is None
        step = self._step or self._start(own)
        own = own and not altered(step.parameters.values())
        if not step.entered:
            step.own = own
        elif step.plain:  # another micro-batch, which nobody expected
            step.plain = False
            step.before = _copied(step.parameters)
            step.table.void(UPDATE, SEVERAL)
        step.entered += 1
        if not self._seen_early:
            self._seen = step.gradient_versions()
        self._seen_early = False
        if losses is not None and known:
            step.losses.append(losses.detach())
        plan = None
        if self._individual or self._diagonals:
            plan = self.plans(losses, examples, step.parameters)
            if plan is not self._plan:
                self._plan = plan
                self.cover(plan.ways)
            self._watch_or_collect(step, plan, losses, examples)
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
            self._open.enter_context(self.capture.receive(self._batch.receive))
        elif step.received is not None:
            self._open.enter_context(self.capture.receive(self._collect))

    def _collect(self, use: Use, grads: tuple[Tensor | None, ...]) -> None:
        assert self._step is not None
        assert self._step.received is not None
        self._step.received.append((use, grads))

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
            elif step.received is None or self._evaluated(step) is None:
                self._end(step, self._batch, changed)
        self._batch = None
        self.capture.forget()
        if self._proxy is not None:
            self._proxy.remove()

    def _evaluated(self, step: Step) -> Tape | None:
        """Replay what was collected; where that is not possible, go the ordinary way with it."""
        received, step.received = step.received or [], None
        assert self._plan is not None
        with self._full_precision():
            step.tape = self.tapes.evaluate(
                self._kind, self._asked_of(step, self._plan), received, step.losses[-1], self.last_update
            )
            if step.tape is None:
                self._watch(step, self._plan, None, len(step.losses[-1]))
                assert self._batch is not None
                for use, grads in received:
                    self._batch.receive(use, grads)
            else:
                used = [n for n in step.parameters if n not in self._plan.names(Way.UNUSED)]
                if not self._diagonals:
                    step.table.begin(len(step.losses[-1]), used, {})
        return step.tape

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
            if self._lengths:
                sums = step.accumulated.sums()
                raw = squared_lengths([v for v, _ in sums.values()])
                step.lengths = {
                    n: x * factor**2 for x, (n, (_, factor)) in zip(raw, sums.items(), strict=True)
                }
            if batch is not None and not batch.plan.checked:
                batch.confirm({n: v * factor for n, (v, factor) in grown.items()})
            if self._wants_sums or not step.immediate:
                step.accumulated.keep()  # ``.grad`` may be clipped, averaged or cleared before they are read

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
        now = step.left = step.gradient_versions()
        return {name for name, version in now.items() if self._seen.get(name) != version}

    def before_update(self) -> None:
        """Compute what needs all micro-batches and the parameters where they still are."""
        step = self._step
        if step is None:
            return
        self.curvatures.before_update(step.parameters)
        if step.entered and step.tape is None and not step.separations:  # the first of several optimisers
            self._before_moving(step)

    def _before_moving(self, step: Step) -> None:
        """Measure what depends on where the parameters are."""
        joint = [s for s in self._individual if isinstance(s, Histogram2d)]
        if joint:
            step.table.fill(joint, everywhere=self.ranks is not None)
        for statistic in self._statistics:
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
        with self._full_precision(), torch.no_grad():
            if step.tape is not None:
                return self._replayed(step, rates)
            return self._finished(step, moved, rates)

    def nothing(self) -> Observed:
        """Return the outcome of a step of which nothing was asked."""
        return Observed(0, Table({}), {})

    def _replayed(self, step: Step, rates: Mapping[str, float] | None) -> Observed:
        """Hand out a step that was replayed from a recording."""
        if step.plain and step.gradient_versions() != step.left:
            rates, self._untouched = None, False
        observed = self.tapes.observed(step, rates, self.last_update)
        if step.plain and rates is None:
            self._clipped(step)
        self.remember(self.tapes.last_update(step, rates))
        observed.eigenvalues, observed.methods = self.curvatures.eigenvalues, self.curvatures.methods
        observed.variances, observed.notes = self._variances(), step.all_notes()
        observed.send()
        return observed

    def _clipped(self, step: Step) -> None:
        for statistic in (UPDATE, Length(Known.UPDATES)):
            step.table.void(
                statistic, "clipped: gradients were changed between the backward pass and the step"
            )

    def _finished(self, step: Step, moved: bool, rates: Mapping[str, float] | None) -> Observed:
        table, ranks, needs = step.table, self.ranks, self._needs
        late = {MEAN, UPDATE} & needs
        left_out = late | {Total()} if step.own else late
        table.close([s for s in self._served if s not in left_out], ranks)
        examples = step.examples
        if ranks is not None:
            examples = int(ranks.sum(torch.tensor(float(examples))))
        if ranks is None:
            self._enter_sums(step, examples)
        elif (
            Length(Known.GRADIENTS) in needs
        ):  # each rank's ``.grad`` is its own, or the mean of all: not sure
            self._enter_joined(step, examples)
        if MEAN in late and not step.immediate:
            self._project(step, MEAN, self._mean(step, examples))
        elif MEAN in late and len(step.batches) > 1:
            table.void(MEAN, SEVERAL)
        updates = self._moved(step, rates) if moved else {}
        if UPDATE in late and not step.plain:
            self._project(step, UPDATE, updates)
        table.close([s for s in (MEAN, UPDATE) if s in late], ranks)
        if UPDATE in late and step.plain and updates:
            means = table.by_parameter(MEAN)
            table.enter(UPDATE, {n: m * updates[n][1] for n, m in means.items() if n in updates})
        for statistic in self._statistics:
            if isinstance(statistic, Derived) and not (step.own and isinstance(statistic, MeanNorm2)):
                table.derive(statistic, examples)
        for separation, lengths in step.separations.items():
            table.enter(separation, lengths, everywhere=True)
        self.usual_batches = step.entered
        if self._untouched is None:
            self._untouched = step.gradient_versions() == step.left
        self.remember(updates)
        known = step.known(Known.GRADIENTS in needs, examples, ranks)
        if Known.UPDATES in needs and updates:
            known[Known.UPDATES] = {n: u if f == 1 else u * f for n, (u, f) in updates.items()}
        observed = Observed(
            examples,
            table,
            known,
            self.curvatures.eigenvalues,
            self.curvatures.methods,
            self._variances(),
            step.all_notes(),
        )
        observed.send()
        return observed

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
            "last_update": {n: v * factor for n, (v, factor) in self.last_update.items()},
            "usual_batches": self.usual_batches,
            "curvatures": self.curvatures.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.remember({n: (v, 1.0) for n, v in state["last_update"].items()})
        self.usual_batches = state["usual_batches"]
        self.curvatures.load_state(state["curvatures"])

    def close(self) -> None:
        """Remove every trace from the model."""
        self.abandon()
        self.capture.disarm()
        self.curvatures.close()
        self.last_update.clear()

    # -- inside a step ----------------------------------------------------------------------------------

    def _start(self, own: bool = False) -> Step:
        if self.roster.refresh():
            frozen = Coverage(Way.FROZEN, "does not require gradients")
            self.cover(dict.fromkeys(self.roster.frozen, frozen))
        parameters = self.roster.trainable
        step = Step(parameters, Table(parameters), Accumulated(parameters))
        step.plain = own and self._plain_step and not any(p.grad is not None for p in parameters.values())
        moves = self._needs & {Known.UPDATES, Length(Known.UPDATES), UPDATE}
        if Known.PARAMETERS in self._needs or (moves and not step.plain):
            step.before = _copied(parameters)
        self._step = step
        return step

    @property
    def _reads_gradients(self) -> bool:
        unchecked = self._batch is not None and not self._batch.plan.checked
        return unchecked or self._reads

    def _memory(self) -> int:
        """Return how many bytes may be kept from a backward pass until the optimiser has moved."""
        if self.memory is not None:
            return self.memory
        if self._device.type != "cuda":
            return HOLD
        return max(SMALL, torch.cuda.max_memory_allocated(self._device) // 8)

    def _asked_of(self, step: Step, plan: Plan) -> Asked:
        return Asked(self._statistics, step.parameters, plan, len(step.losses[-1]), step.plain)

    def _watch_or_collect(self, step: Step, plan: Plan, losses: Tensor | None, examples: int) -> None:
        if self._tapeable(step):
            uses = self.capture.uses()
            shapes = tuple((use.name, *(x.shape for x in use.inputs)) for use in uses)
            self._kind = (id(plan), self._known[0], self._needs, shapes, step.plain)
            if self.tapes.collects(self._kind, self._asked_of(step, plan), uses):
                step.received = []
                return
        self._watch(step, plan, losses, examples)

    def _tapeable(self, step: Step) -> bool:
        """Say whether the step is of the simplest kind: one batch, one process, objective ours, gradients new."""
        simple = step.own and self.usual_batches == 1 and step.entered == 1 and not step.accumulated.anything
        whole = not self._needs & {Known.GRADIENTS, Known.PARAMETERS, Known.UPDATES}
        return simple and whole and self._device.type == "cuda" and not any(map(_held, self._individual))

    def _watch(self, step: Step, plan: Plan, losses: Tensor | None, examples: int) -> None:
        several = self.usual_batches != 1 or self.ranks is not None
        step.immediate = not several
        waits = {MEAN} if several else set()
        if not step.plain:
            waits |= {UPDATE}
        late = [s for s in self._individual if s in waits]
        left_out = waits | ({UPDATE} if step.plain else set()) | ({Total()} if step.own else set())
        now = [s for s in self._individual if s not in left_out]
        last = self.last_update
        if LAST in now and any(v._version != self._last_versions[n] for n, (v, _) in last.items()):
            self._untouched, last = False, {}  # the gradient it is a multiple of was overwritten
        sums = step.accumulated.sum_of if step.own else _unknown
        batch = Batch(
            self.capture,
            plan,
            step.parameters,
            examples,
            step.table,
            now,
            last,
            late,
            sums,
            self.fast,
            self._memory(),
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

    # -- after a step -----------------------------------------------------------------------------------

    def _enter_sums(self, step: Step, examples: int) -> None:
        """Enter the mean gradient and its length, as they are known from ``.grad``."""
        if not self._reads_gradients:
            return
        sums, table = step.accumulated.sums(), step.table
        if step.own and self._wants_sums:
            zeros = {n: torch.zeros_like(step.parameters[n]) for n in table.covered if n not in sums}
            table.enter(Total(), {**{n: v * factor for n, (v, factor) in sums.items()}, **zeros})
        if not step.lengths:
            return
        zero = torch.zeros_like(next(iter(step.lengths.values())))
        scale = 1 / max(1, examples) ** 2
        mean2 = {n: step.lengths[n] * scale if n in step.lengths else zero for n in step.parameters}
        if Length(Known.GRADIENTS) in self._needs:
            table.enter(Length(Known.GRADIENTS), mean2, everywhere=True)
        if step.own and MeanNorm2() in self._needs:
            table.enter(MeanNorm2(), mean2)

    def _enter_joined(self, step: Step, examples: int) -> None:
        """Enter the length of the mean gradient over all ranks, if every parameter's examples are known."""
        totals = step.table.by_parameter(Total())
        if step.table.used <= set(totals):
            lengths = {n: MeanNorm2().derive(examples, t) for n, t in totals.items()}
            zeros = {n: torch.zeros((), dtype=torch.float64) for n in step.parameters if n not in totals}
            step.table.enter(Length(Known.GRADIENTS), {**lengths, **zeros}, everywhere=True)

    def _mean(self, step: Step, examples: int) -> dict[str, tuple[Tensor, float]]:
        """Return the mean gradient of the examples, as vectors and factors."""
        scale = 1 / max(1, examples)
        if step.own:
            return {n: (v, factor * scale) for n, (v, factor) in step.accumulated.sums().items()}
        return {n: (t, scale) for n, t in step.table.by_parameter(Total()).items()}

    def _moved(self, step: Step, rates: Mapping[str, float] | None) -> dict[str, tuple[Tensor, float]]:
        """Return the step taken, as vectors and factors, and enter its length."""
        table, wanted = step.table, Length(Known.UPDATES) in self._needs
        if step.plain and (rates is None or step.gradient_versions() != step.left):
            self._untouched = False
            for statistic in (UPDATE, Length(Known.UPDATES)):
                table.void(
                    statistic, "clipped: gradients were changed between the backward pass and the step"
                )
            return {}
        if step.plain and rates is not None:
            grads = {n: p.grad.detach() for n, p in step.parameters.items() if p.grad is not None}
            if wanted:
                gradients = table.by_parameter(
                    Length(Known.GRADIENTS)
                )  # whose mean the optimiser has subtracted
                lengths = {n: x * rates.get(n, 0.0) * rates.get(n, 0.0) for n, x in gradients.items()}
                table.enter(Length(Known.UPDATES), lengths, everywhere=True)
            return {n: (g, -rates.get(n, 0.0)) for n, g in grads.items()}
        if not step.before:
            return {}
        names = list(step.parameters)
        now, before = [step.parameters[n].detach() for n in names], [step.before[n] for n in names]
        updates = dict(zip(names, torch._foreach_sub(now, before), strict=True))
        if wanted:
            lengths = dict(zip(names, squared_lengths(list(updates.values())), strict=True))
            table.enter(Length(Known.UPDATES), lengths, everywhere=True)
        return {n: (u, 1.0) for n, u in updates.items()}

    def remember(self, updates: dict[str, tuple[Tensor, float]]) -> None:
        """Keep the step taken for the next one."""
        self.last_update = updates
        self._last_versions = {n: v._version for n, (v, _) in updates.items()}

    def _project(
        self, step: Step, statistic: Statistic, directions: Mapping[str, tuple[Tensor, float]]
    ) -> None:
        for batch in step.batches:
            batch.project(statistic, directions)

    def _variances(self) -> dict[Need, float]:
        found = self.curvatures.variances
        if self.ranks is None:
            return found
        ranks = self.ranks
        needs = self._diagonals
        return {n: float(ranks.sum(torch.tensor(found.get(n, 0.0), dtype=torch.float64))) for n in needs}


def _held(statistic: Statistic) -> bool:
    """Say whether a statistic keeps gradients beyond the step, which a recording would overwrite."""
    return type(statistic).__module__.startswith("cockpit.legacy")


def _copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in parameters.items()}


def _unknown(name: str) -> None:
    """Say that a parameter's summed gradient is not known from ``.grad``."""
