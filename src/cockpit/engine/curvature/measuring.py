"""Measuring: the curvature of one micro-batch, from its live graph, and what is remembered of models to measure it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cockpit.engine.answers.ranks import Ranks
from cockpit.engine.coverage.coverage import Plan
from cockpit.engine.curvature.curvature_tape import Found
from cockpit.engine.curvature.diagonals import Diagonals, Learnt
from cockpit.engine.curvature.hessian import HessianProduct, insist_symmetric
from cockpit.engine.curvature.loss_kinds import Kinds
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.needs import Diagonal
from cockpit.errors import Gap


class Measuring:
    """Makes what curvature is measured with, on one of the processes of a run."""

    def __init__(self, ranks: Ranks | None, seed: int) -> None:
        self.ranks, self.seed = ranks, seed
        self.draws = 0
        """How many seeds were handed out."""
        self.kinds = Kinds()
        self._learnt: weakref.WeakKeyDictionary[Plan, Learnt] = weakref.WeakKeyDictionary()
        self._symmetric: bool | Gap | None = None
        self.by_hand = False
        """Whether products with the Hessian of the present micro-batch are made by hand."""

    def learnt(self, plan: Plan) -> Learnt:
        """Return what is known of a plan."""
        return self._learnt.setdefault(plan, Learnt())

    def forget(self) -> None:
        """Forget what is known of plans."""
        self._learnt.clear()

    def diagonals(self, subject: Subject, plan: Plan, parameters: Mapping[str, Tensor]) -> Diagonals:
        """Return the diagonals of a micro-batch."""
        return Diagonals(subject, plan, parameters, self.learnt(plan), self.kinds, self._check, self.by_hand)

    def hessian(self, graphs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> HessianProduct:
        """Return the Hessian of the mean loss of all processes, as far as it is in these graphs."""
        examples = sum(len(losses) for losses in graphs)
        if self.ranks is not None:
            examples = int(self.ranks.sum(torch.tensor(float(examples))))
        local = HessianProduct([(x, len(x) / examples) for x in graphs], parameters, self.by_hand)
        self._check(local)
        return local

    def measured(
        self,
        subject: Subject,
        plan: Plan | None,
        parameters: Mapping[str, Tensor],
        needs: Mapping[Diagonal, tuple[torch.Generator, bool]],
        hessian: bool,
    ) -> Found:
        """Return the diagonals of a micro-batch and (``hessian``) its Hessian; nothing may fail.

        ``needs`` come with their random numbers and whether their variances are asked for.
        """
        if not needs or plan is None:
            return {}, self.hessian([subject.losses], parameters)
        source = self.diagonals(subject, plan, parameters)
        entries = {need: source.entry(need, *how) for need, how in needs.items()}
        return entries, source.hessian if hessian else None

    def _check(self, product: HessianProduct) -> None:
        """Insist on a symmetric Hessian, once for a model."""
        if self._symmetric is None:
            try:
                insist_symmetric(product, generator(product.flat.device, self.seed))
                self._symmetric = True
            except Gap as gap:
                self._symmetric = gap
        if isinstance(self._symmetric, Gap):
            raise self._symmetric

    def new_seed(self, own: bool) -> int:
        """Return a new seed: the same on all ranks, or (``own``) each rank's."""
        self.draws += 1
        rank = self.ranks.rank if own and self.ranks is not None else 0
        return self.seed + 1_000_003 * self.draws + rank


def generator(device: torch.device, seed: int) -> torch.Generator:
    """Return a source of random numbers that nobody else uses."""
    return torch.Generator(device).manual_seed(seed)
