"""Curvature of a step: eigenvalue and diagonals, computed on the live graphs of its micro-batches.

Diagonals add over micro-batches and ranks, so each is computed when its micro-batch is entered. An eigenvalue does
not add: it needs the Hessian of the whole step at once. Where a step is one micro-batch it is computed on entering;
where there are (or may be) several, their graphs are kept alive until the optimiser is about to move.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from cockpit.engine.attention import twice_differentiable_attention
from cockpit.engine.capture import Capture
from cockpit.engine.coverage import Plan
from cockpit.engine.curvature import FlatParameters, HessianProduct, insist_symmetric
from cockpit.engine.diagonals import Diagonals, Learnt
from cockpit.engine.graph import hides_layers
from cockpit.engine.lanczos import Carried, Eigenpair, top_eigenpair
from cockpit.engine.loss_kinds import Kinds
from cockpit.engine.needs import Diagonal, DiagonalVariance, Need, TopEigenvalue
from cockpit.engine.ranks import Ranks
from cockpit.engine.table import Table
from cockpit.engine.tracking import CARRIED, TrackedEigenvalue, followed
from cockpit.errors import Gap

Product = Callable[[Tensor], Tensor]


class Curvatures:
    """Serves the curvature needs of a step."""

    def __init__(self, capture: Capture, ranks: Ranks | None, seed: int) -> None:
        self.capture, self.ranks, self.seed = capture, ranks, seed
        self.vectors: dict[str, Tensor] = {}
        self.eigenvalues: dict[TopEigenvalue, dict[str, Eigenpair] | Gap] = {}
        self.methods: dict[Need, str | Gap] = {}
        self._variances: list[dict[Need, tuple[Tensor, float]]] = []
        """Standard errors of each micro-batch, with factors; a GPU is not waited for before the end of the step."""
        self._learnt: weakref.WeakKeyDictionary[Plan, Learnt] = weakref.WeakKeyDictionary()
        self._kinds = Kinds()
        self._asked: Iterable[Need] = ()
        self._needs: list[Need] = []
        self._doubted: set[Diagonal] = set()
        """Those whose variances are asked for."""
        self._graphs: list[Tensor] = []
        self._attention = ExitStack()
        weakref.finalize(self, self._attention.close)  # also if nobody closes us
        self._symmetric: bool | Gap | None = None
        self._draws = 0

    def begin(self, needs: Iterable[Need]) -> None:
        """Prepare for a step's needs."""
        if needs is not self._asked:
            self._asked = needs
            self._needs = sorted((n for n in needs if isinstance(n, TopEigenvalue | Diagonal)), key=repr)
            self._doubted = {n.diagonal for n in needs if isinstance(n, DiagonalVariance)}
        self.eigenvalues, self.methods, self._variances, self._graphs = {}, {}, [], []
        self._attention.close()
        if self._needs:
            self._attention.enter_context(twice_differentiable_attention())

    @property
    def variances(self) -> dict[Need, float]:
        """Of the whole model's trace, where it is an estimate: it does not follow from its parameters'."""
        total: dict[Need, float] = {}
        for batch in self._variances:
            for need, (error, scale) in batch.items():
                total[need] = total.get(need, 0.0) + (float(error) * scale) ** 2
        return total

    @property
    def eigen(self) -> list[TopEigenvalue]:
        """The eigenvalues asked for."""
        return [n for n in self._needs if isinstance(n, TopEigenvalue)]

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
        parameters = table.parameters
        self._variances.append({})
        if self._needs and hides_layers(losses):
            gap = Gap("reentrant_checkpointing: the second derivative of a checkpointed part cannot be had")
            self.methods = dict.fromkeys(self._needs, gap)
            self.eigenvalues = dict.fromkeys(self.eigen, gap)
            return
        counted = losses
        if keep is not None:
            with (
                torch.enable_grad()
            ):  # an example that does not count has no curvature, but stays in its place
                losses = losses * torch.zeros_like(losses).index_fill_(0, keep, 1)
                counted = losses[keep]
        source = None
        diagonals = [need for need in self._needs if isinstance(need, Diagonal)]
        if diagonals and plan is not None:
            learnt = self._learnt.setdefault(plan, Learnt())
            source = Diagonals(self.capture, losses, plan, parameters, learnt, self._kinds, self._check)
            for need in diagonals:
                self._diagonal(need, source, table)
        if self.eigen:
            self._graphs.append(counted)
            if alone and len(self._graphs) == 1:
                self._eigenvalues(parameters, source if keep is None else None)
            elif alone:
                gap = Gap("needs_full_batch: more micro-batches came than in the step before")
                self.eigenvalues = dict.fromkeys(self.eigen, gap)

    def before_update(self, parameters: Mapping[str, Tensor]) -> None:
        """Compute eigenvalues of the whole step, where they have waited for it."""
        if self._graphs and not self.eigenvalues:
            self._eigenvalues(parameters)
        self._graphs = []

    def cancel(self) -> None:
        """Take the last micro-batch back."""
        if self._variances:
            self._variances.pop()
        if self._graphs:
            self._graphs.pop()
            self.eigenvalues = {}

    def abandon(self) -> None:
        """Forget the step so far."""
        self.eigenvalues, self.methods, self._variances, self._graphs = {}, {}, [], []

    def state(self) -> dict[str, Any]:
        """Return warm starts and the count of draws."""
        return {"vectors": dict(self.vectors), "draws": self._draws}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        self.vectors, self._draws = dict(state["vectors"]), state["draws"]

    def close(self) -> None:
        """Forget everything."""
        self._attention.close()
        self._learnt.clear()
        self._asked, self._graphs = (), []
        self.vectors.clear()

    def _eigenvalues(self, parameters: Mapping[str, Tensor], source: Diagonals | None = None) -> None:
        """Solve for every eigenvalue asked for; what fails becomes a gap.

        With ``source``, whose batch is the whole step, its Hessian is used.
        """
        made = None
        for need in self.eigen:
            try:
                made = made or self._product(parameters, source)
                local, product = made
                found: dict[str, Eigenpair] = {}
                if not need.blocks:
                    found[""] = self._solved(need, "", product, local.flat.size, local.flat)
                else:
                    start = 0
                    for name, size in zip(local.flat.names, local.flat.sizes, strict=True):
                        block = _block(product, local.flat.size, slice(start, start + size))
                        found[name] = self._solved(need, name, block, size, local.flat)
                        start += size
                self.eigenvalues[need] = found
            except Gap as gap:
                self.eigenvalues[need] = gap
            except Exception as failure:
                self.eigenvalues[need] = Gap(f"failed: {type(failure).__name__}: {failure}")

    def _product(
        self, parameters: Mapping[str, Tensor], source: Diagonals | None
    ) -> tuple[HessianProduct, Product]:
        """Return the Hessian of this process's graphs, and products with that of all processes."""
        ranks = self.ranks
        if ranks is None and source is not None:
            return source.hessian, source.hessian  # one gradient graph for all who multiply
        examples = sum(len(losses) for losses in self._graphs)
        if ranks is not None:
            examples = int(ranks.sum(torch.tensor(float(examples))))
        local = HessianProduct([(x, len(x) / examples) for x in self._graphs], parameters)
        self._check(local)
        return local, local if ranks is None else lambda v: ranks.sum(local(v))

    def _check(self, product: HessianProduct) -> None:
        """Insist on a symmetric Hessian, once for a model."""
        if self._symmetric is None:
            try:
                generator = torch.Generator(product.flat.device).manual_seed(self.seed)
                insist_symmetric(product, generator)
                self._symmetric = True
            except Gap as gap:
                self._symmetric = gap
        if isinstance(self._symmetric, Gap):
            raise self._symmetric

    def _solved(
        self, need: TopEigenvalue, scope: str, product: Product, size: int, flat: FlatParameters
    ) -> Eigenpair:
        key, tracked = f"{need} {scope}", isinstance(need, TrackedEigenvalue)
        start = self.vectors.get(key)
        if isinstance(need, TrackedEigenvalue) and _usable(start, size):
            carried = Carried(start, self.vectors[f"{key} values"])
            pair = followed(product, carried, need.per_step, flat.dtype, flat.device)
        else:
            pair = top_eigenpair(
                product,
                None if tracked else start,
                size=size,
                dtype=flat.dtype,
                device=flat.device,
                generator=self._generator(flat.device, own=False),
                tolerance=need.tolerance,
                max_products=need.products,
                carry=CARRIED if tracked else 0,
            )
        if pair.carried is None:
            self.vectors[key] = pair.vector
        else:
            self.vectors[key], self.vectors[f"{key} values"] = pair.carried.vectors, pair.carried.values
        # Who waits for the next step keeps this one's numbers; vectors as large as the model must not stay for that.
        return replace(pair, vector=pair.vector.new_empty(0), carried=None)

    def _generator(self, device: torch.device, own: bool) -> torch.Generator:
        """Return a private generator: the same on all ranks, or (``own``) each rank's."""
        self._draws += 1
        rank = self.ranks.rank if own and self.ranks is not None else 0
        return torch.Generator(device).manual_seed(self.seed + 1_000_003 * self._draws + rank)

    def _diagonal(self, need: Diagonal, source: Diagonals, table: Table) -> None:
        try:
            generator = self._generator(source.losses.device, own=True)
            result = source.measured(need, generator)
            scale, errors, variances = source.scale(result), result.standard_error, DiagonalVariance(need)
            for name, value in result.by_parameter.items():
                table.add(need, name, value if scale == 1 else value * scale)
                if need in self._doubted:
                    error = None if errors is None else errors.get(name)
                    exact = source.nothing(value.device)
                    table.add(variances, name, exact if error is None else (error.double() * scale).square())
            if result.total_standard_error is not None:
                self._variances[-1][need] = result.total_standard_error, scale
            self.methods[need] = result.method
        except Gap as gap:
            self.methods[need] = gap
        except Exception as failure:
            self.methods[need] = Gap(f"failed: {type(failure).__name__}: {failure}")


def _usable(rows: Tensor | None, size: int) -> TypeGuard[Tensor]:
    """Say whether carried vectors belong to a model of this size."""
    return rows is not None and rows.ndim == 2 and rows.shape[1] == size


def _block(product: Product, size: int, place: slice) -> Product:
    """Return products with the diagonal block of some coordinates."""

    def of_block(v: Tensor) -> Tensor:
        whole = v.new_zeros(size)
        whole[place] = v
        return product(whole)[place]

    return of_block
