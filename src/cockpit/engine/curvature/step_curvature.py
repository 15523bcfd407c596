"""Curvature of a step: eigenvalue and diagonals, computed on the live graphs of its micro-batches.

Diagonals add over micro-batches and ranks, so each is computed when its micro-batch is entered. An eigenvalue does
not add: it needs the Hessian of the whole step at once. Where a step is one micro-batch it is computed on entering;
where there are (or may be) several, their graphs are kept alive until the optimiser is about to move.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.answers.table import SEVERAL, Table
from cockpit.engine.coverage.coverage import Plan
from cockpit.engine.curvature.curvature_tape import CurvatureTape, Found
from cockpit.engine.curvature.curvature_tapes import CurvatureTapes, Kind
from cockpit.engine.curvature.diagonals import Diagonals, Entry
from cockpit.engine.curvature.eigenvalues import Eigenvalues, Product, Solved
from cockpit.engine.curvature.hessian import FlatParameters, HessianProduct
from cockpit.engine.curvature.measuring import Measuring, generator
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.derivatives.attention import twice_differentiable_attention
from cockpit.engine.derivatives.graph import hides_layers
from cockpit.engine.needs import Diagonal, DiagonalVariance, Need, TopEigenvalue
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.hooks import Hooks
from cockpit.errors import Gap

LASTING = (
    "no_double_backward",
    "not_covered",
    "no_outputs",
    "coupled_losses",
    "too_many_outputs",
    "asymmetric",
)
"""How gaps begin that say something about a model, and not about the numbers of one micro-batch."""
MORE = Gap(SEVERAL)


class Curvatures:
    """Serves the curvature needs of a step; ``recorder`` is what may record them, if anything may."""

    def __init__(
        self,
        capture: Capture,
        ranks: Ranks | None,
        seed: int,
        recorder: Callable[[], Recorder] | None = None,
        memory: int | None = None,
    ) -> None:
        self.capture, self.ranks = capture, ranks
        self.measuring = Measuring(ranks, seed)
        self.tapes = None if recorder is None or ranks is not None else CurvatureTapes(recorder, memory)
        self.eigenvalues: Solved = {}
        self.methods: dict[Need, str | Gap] = {}
        self._solver = Eigenvalues(self._random)
        self._variances: list[dict[Need, tuple[Tensor, float]]] = []
        """Standard errors of each micro-batch, with factors; a GPU is not waited for before the end of the step."""
        self._asked: Iterable[Need] = ()
        self._diagonals: list[Diagonal] = []
        self.eigen: list[TopEigenvalue] = []
        """The eigenvalues asked for."""
        self._doubted: set[Diagonal] = set()
        """Those whose variances are asked for."""
        self._given: frozenset[Need] = frozenset()
        self._keys: dict[Any, int] = {}
        self._key = 0
        """The number of what is asked for, so that it need not be compared at every step."""
        self.replayed: CurvatureTape | None = None
        """What the present step was replayed from, if nobody asks for whole diagonals."""
        self._graphs: list[Tensor] = []
        self._hooks = Hooks()
        self._around = ExitStack()
        """What is different during a forward pass whose curvature is asked for."""
        weakref.finalize(self, self._around.close)  # also if nobody closes us

    def _random(self, device: torch.device) -> torch.Generator:
        """Return random numbers that are the same on all processes."""
        return generator(device, self.measuring.new_seed(own=False))

    def begin(self, needs: Iterable[Need], given: frozenset[Need] = frozenset()) -> None:
        """Prepare for a step's needs; those ``given`` are handed out as they are, others serve to derive from."""
        self.replayed = None
        self._hooks.seen = False
        if needs is not self._asked:
            self._asked, self._given = needs, given
            curved = [n for n in needs if isinstance(n, Diagonal | TopEigenvalue | DiagonalVariance)]
            ordered = sorted(curved, key=repr)
            self._diagonals = [n for n in ordered if isinstance(n, Diagonal)]
            self.eigen = [n for n in ordered if isinstance(n, TopEigenvalue)]
            self._doubted = {n.diagonal for n in ordered if isinstance(n, DiagonalVariance)}
            key = (*self._diagonals, *self.eigen, frozenset(self._doubted))
            self._key = self._keys.setdefault(key, len(self._keys))
            self._surround()
        self.eigenvalues, self.methods, self._variances, self._graphs = {}, {}, [], []

    def _surround(self) -> None:
        """Make forward passes differentiable as often as needed, and notice whose hooks are on them."""
        self._around.close()
        if self._diagonals or self.eigen:
            self._around.enter_context(twice_differentiable_attention())
            if self.tapes is not None:
                self._around.enter_context(self._hooks.noticed())

    @property
    def variances(self) -> dict[Need, float]:
        """Of the whole model's trace, where it is an estimate: it does not follow from its parameters'."""
        total: dict[Need, float] = {}
        for batch in self._variances:
            for need, (error, scale) in batch.items():
                total[need] = total.get(need, 0.0) + (float(error) * scale) ** 2
        return total

    def enter(
        self, losses: Tensor, plan: Plan | None, table: Table, alone: bool, keep: Tensor | None = None
    ) -> None:
        """Measure a micro-batch before its backward pass.

        Args:
            losses: one for each example.
            plan: how individual gradients are had.
            table: where diagonals are entered.
            alone: whether no other micro-batch is expected in the step.
            keep: the examples that count (None: all).
        """
        self._variances.append({})
        if not self._diagonals and not self.eigen:
            return
        simple = alone and keep is None and not self._hooks.on(table.parameters.values())
        kind = self._kind(losses, plan) if simple else None
        if kind is not None and self._replayed(kind, losses, table):
            return
        self.measuring.by_hand = kind is not None and kind.by_hand
        if hides_layers(losses):
            gap = Gap("reentrant_checkpointing: the second derivative of a checkpointed part cannot be had")
            self.methods = dict.fromkeys((*self._diagonals, *self.eigen), gap)
            self.eigenvalues = dict.fromkeys(self.eigen, gap)
            return
        counted = losses
        if keep is not None:
            with (
                torch.enable_grad()
            ):  # an example that does not count has no curvature, but stays in its place
                losses = losses * torch.zeros_like(losses).index_fill_(0, keep, 1)
                counted = losses[keep]
        subject = Subject.seen(losses, self.capture)
        source = None
        if self._diagonals and plan is not None:
            source = self.measuring.diagonals(subject, plan, table.parameters)
        seeds = [self.measuring.new_seed(own=True) for _ in self._diagonals]
        entries = {} if source is None else self._measured(source, table, seeds)
        if kind is not None and len(entries) < len(self._diagonals):
            kind.by_hand = False  # lest it was that
        made = None
        if self.eigen:
            self._graphs.append(counted)
            if alone and len(self._graphs) == 1:
                made = self._solve(table.parameters, source if keep is None else None)
                if kind is not None and any(isinstance(x, Gap) for x in self.eigenvalues.values()):
                    kind.by_hand = False  # lest it was that
            elif alone:
                self.eigenvalues = dict.fromkeys(self.eigen, MORE)
        if kind is not None and (entries or made is not None) and self._lasting(entries, made):
            drawn = [seed for need, seed in zip(self._diagonals, seeds, strict=True) if need in entries]
            hessian = made or (source.multiplied if source is not None else None)
            self._record(kind, subject, plan, table, drawn, (entries, made), hessian)

    def _lasting(self, entries: Collection[Diagonal], made: HessianProduct | None) -> bool:
        """Say whether what could not be measured cannot be of any micro-batch like this one."""
        gaps = [self.methods.get(need) for need in self._diagonals if need not in entries]
        if made is None:
            gaps += [self.eigenvalues.get(need) for need in self.eigen]  # type: ignore[misc]
        return all(isinstance(gap, Gap) and str(gap).startswith(LASTING) for gap in gaps)

    def _measured(self, source: Diagonals, table: Table, seeds: list[int]) -> dict[Diagonal, Entry]:
        """Measure diagonals and enter them; what fails is a gap."""
        entries: dict[Diagonal, Entry] = {}
        for need, seed in zip(self._diagonals, seeds, strict=True):
            try:
                random = generator(source.losses.device, seed)
                entries[need] = source.entry(need, random, need in self._doubted)
                self._enter(need, entries[need], table)
            except Gap as gap:
                self.methods[need] = gap
            except Exception as failure:
                self.methods[need] = Gap(f"failed: {type(failure).__name__}: {failure}")
        return entries

    def _enter(self, need: Diagonal, entry: Entry, table: Table) -> None:
        entry.enter(need, table)
        if entry.error is not None:
            self._variances[-1][need] = entry.error
        self.methods[need] = entry.method

    def _kind(self, losses: Tensor, plan: Plan | None) -> Kind | None:
        """Return what is known of micro-batches like this one, where they may be recorded."""
        if self.tapes is None or self._graphs or not Recorder.serves(losses.device):
            return None
        learnt = None if plan is None else self.measuring.learnt(plan)
        return self.tapes.kind((plan, self._key, losses.shape), learnt)

    def _replayed(self, kind: Kind, losses: Tensor, table: Table) -> bool:
        """Measure a micro-batch by a recording, if there is one and nothing is to be examined."""
        if kind.tape is None or self.tapes is None or kind.examines(table.parameters, self.measuring.kinds):
            return False
        subject = Subject.seen(losses, self.capture)
        measured = kind.tape.entries

        def seeds() -> list[int]:
            drawn = [(need, self.measuring.new_seed(own=True)) for need in self._diagonals]
            return [seed for need, seed in drawn if need in measured]

        tape = self.tapes.begin(kind, subject, seeds)
        if tape is None:
            return False
        kind.count(self.measuring.kinds)
        self.methods.update({need: kind.gaps[need] for need in self._diagonals if need not in measured})
        for need, entry in tape.entries.items():
            self._enter(need, entry.copied() if need in self._given else entry, table)
        self.replayed = tape if self._given.isdisjoint(tape.entries) else None
        if self.eigen:
            self._graphs.append(losses)
            self.eigenvalues = {need: kind.gaps[need] for need in self.eigen if need in kind.gaps}
        if self.eigen and tape.hessian is not None:
            flat = tape.hessian.flat
            self.eigenvalues = self._solver.solve(self.eigen, lambda: (flat, tape.product))
        return True

    def _record(
        self,
        kind: Kind,
        subject: Subject,
        plan: Plan | None,
        table: Table,
        seeds: list[int],
        truth: Found,
        hessian: HessianProduct | None,
    ) -> None:
        """Record a micro-batch that was measured, if it is time to; ``hessian`` is what was multiplied with."""
        if (
            self.tapes is None
            or not self.tapes.due(kind)
            or kind.examines(table.parameters, self.measuring.kinds)
        ):
            return
        generators = [torch.Generator(subject.losses.device) for _ in seeds]
        needs = {n: (g, n in self._doubted) for n, g in zip(truth[0], generators, strict=True)}
        found: list[tuple[Need, object]] = [*self.methods.items(), *self.eigenvalues.items()]
        kind.gaps = {need: gap for need, gap in found if isinstance(gap, Gap)}

        def measure(placed: Subject) -> Found:
            return self.measuring.measured(placed, plan, table.parameters, needs, truth[1] is not None)

        self.tapes.record(kind, subject, measure, generators, seeds, truth, hessian)

    def before_update(self, parameters: Mapping[str, Tensor]) -> None:
        """Compute eigenvalues of the whole step, where they have waited for it."""
        if self._graphs and not self.eigenvalues:
            self._solve(parameters)
        self._graphs = []

    def cancel(self) -> None:
        """Take the last micro-batch back."""
        self.replayed = None
        if self._variances:
            self._variances.pop()
        if self._graphs:
            self._graphs.pop()
            self.eigenvalues = {}

    def abandon(self) -> None:
        """Forget the step so far."""
        self.eigenvalues, self.methods, self._variances, self._graphs = {}, {}, [], []
        self.replayed = None

    def state(self) -> dict[str, Any]:
        """Return warm starts and the count of draws."""
        return {"vectors": dict(self._solver.vectors), "draws": self.measuring.draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self._solver.vectors, self.measuring.draws = dict(state["vectors"]), state["draws"]

    def close(self) -> None:
        """Forget everything."""
        self._around.close()
        self.measuring.forget()
        self._asked, self._given, self._graphs = (), frozenset(), []
        self._solver.vectors.clear()
        if self.tapes is not None:
            self.tapes.forget()

    def _solve(
        self, parameters: Mapping[str, Tensor], source: Diagonals | None = None
    ) -> HessianProduct | None:
        """Solve for every eigenvalue asked for; return the Hessian of this process's graphs, if there is one.

        With ``source``, whose batch is the whole step, its Hessian is used.
        """
        made: list[HessianProduct] = []

        def operator() -> tuple[FlatParameters, Product]:
            ranks = self.ranks
            shared = ranks is None and source is not None  # one gradient graph for all who multiply
            made.append(
                source.hessian if shared and source else self.measuring.hessian(self._graphs, parameters)
            )
            local = made[0]
            return local.flat, local if ranks is None else lambda v: ranks.sum(local(v))

        self.eigenvalues = self._solver.solve(self.eigen, operator)
        return made[0] if made else None
