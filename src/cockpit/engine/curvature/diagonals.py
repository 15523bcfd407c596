"""Curvature diagonals of one micro-batch, each computed once, whoever asks for it.

``diag_ggn_auto`` and ``diag_h_auto`` leave the choice to us: the GGN is exact where that takes at most `EXACT`
training steps' worth of work, and estimated from one sample of the loss Hessians otherwise; the Hessian is the
GGN where both agree, and otherwise estimated from one random vector (`PROBES`). A product with the Hessian takes as
long as four backward passes, so from `LARGE` parameters on the GGN is sampled in the Hessian's place, and whether
both agree is not asked: the method is then ``ggn_mc``, without the word Hessian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from cockpit.engine.answers.table import Table
from cockpit.engine.coverage.coverage import Plan
from cockpit.engine.curvature.ggn import ggn_diagonal, ggn_diagonal_mc
from cockpit.engine.curvature.hessian import DiagonalResult, HessianProduct
from cockpit.engine.curvature.hessian_diagonal import Agreement, hessian_diagonal
from cockpit.engine.curvature.loss_graph import Operations
from cockpit.engine.curvature.loss_kinds import Kinds
from cockpit.engine.curvature.loss_roots import Root
from cockpit.engine.curvature.square_sums import LayerSums, Passes
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.needs import Diagonal, DiagonalVariance
from cockpit.engine.numbers.precision import wide_dtype

EXACT = 1.0
"""Up to so many training steps (by multiply-adds), the exact GGN is worth its price where the choice is ours."""
PROBES = 1
"""How many random vectors estimate a Hessian that is not the GGN, where the choice is ours."""
LARGE = 2**23
"""From so many parameters on, no Hessian products are made where the choice is ours."""


@dataclass
class Learnt:
    """What is remembered from step to step of one plan."""

    agreement: Agreement | None = None
    operations: Operations | None = None
    """Between outputs and losses."""
    passes: Passes = field(default_factory=Passes)
    zeros: dict[torch.device, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Entry:
    """A diagonal of the summed losses, ready to be entered in a table."""

    by_parameter: dict[str, Tensor]
    variances: dict[str, Tensor]
    """Of each parameter's trace, where they are asked for."""
    error: tuple[Tensor, float] | None
    """The standard error of the whole trace and its factor, where that is an estimate."""
    method: str

    def enter(self, need: Diagonal, table: Table) -> None:
        """Enter it as an answer of the present micro-batch."""
        for name, value in self.by_parameter.items():
            table.add(need, name, value)
        for name, value in self.variances.items():
            table.add(DiagonalVariance(need), name, value)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in it."""
        error = [] if self.error is None else [self.error[0]]
        return [*self.by_parameter.values(), *self.variances.values(), *error]

    def copied(self) -> Entry:
        """Return a copy, which no replay overwrites."""
        return replace(self, by_parameter={name: x.clone() for name, x in self.by_parameter.items()})


class Diagonals:
    """The diagonals of one micro-batch.

    Args:
        subject: the micro-batch.
        plan: how individual gradients are had.
        parameters: leaves by name.
        learnt: what is known of the plan; added to.
        kinds: what is known of loss functions; added to.
        check: raises a `Gap` for a Hessian that is none.
        by_hand: whether products with it are made by hand.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        learnt: Learnt,
        kinds: Kinds,
        check: Callable[[HessianProduct], None],
        by_hand: bool = False,
    ) -> None:
        self.losses, self.parameters = subject.losses, parameters
        self.examples = len(subject.losses)
        self._outputs = subject.outputs
        self._learnt, self._kinds, self._check, self._by_hand = learnt, kinds, check, by_hand
        self._sums = LayerSums(subject, plan, parameters, learnt.passes)
        self._exact: DiagonalResult | None = None
        self._draw: DiagonalResult | None = None
        self._sums_already: list[DiagonalResult] = []

    def measured(self, need: Diagonal, generator: torch.Generator) -> DiagonalResult:
        """Return the diagonal that is asked for: of the mean loss, or of the summed ones, as `scale` knows."""
        match need.curvature:
            case "diag_ggn_exact":
                return self.exact()
            case "diag_ggn_mc":
                return self._summed(
                    ggn_diagonal_mc(self.root, self._sums, generator, need.samples, summed=True)
                )
            case "diag_h":
                return self._hessian(generator, self.exact, 16)
            case "diag_h_auto" if sum(p.numel() for p in self.parameters.values()) >= LARGE:
                return self._sampled(generator)
            case "diag_h_auto":
                return self._hessian(generator, lambda: self.affordable(generator), PROBES)
            case _:
                return self.affordable(generator)

    def entry(self, need: Diagonal, generator: torch.Generator, doubted: bool) -> Entry:
        """Return the diagonal that is asked for, of the summed losses (``doubted``: with its variances)."""
        result = self.measured(need, generator)
        scale, errors = self.scale(result), result.standard_error or {}
        found = result.by_parameter
        variances = {}
        for name, value in found.items() if doubted else ():
            error = errors.get(name)
            variances[name] = (
                self.nothing(value.device) if error is None else (error.double() * scale).square()
            )
        total = result.total_standard_error
        return Entry(
            found if scale == 1 else {name: value * scale for name, value in found.items()},
            variances,
            None if total is None else (total, scale),
            result.method,
        )

    @cached_property
    def root(self) -> Root:
        """A root of the loss Hessians."""
        root = self._kinds.root(self.losses, self._outputs, self.parameters)
        self._learnt.operations = root.graph.operations
        return root

    @cached_property
    def hessian(self) -> HessianProduct:
        """Products with the Hessian of the mean loss; whoever asks for one gets the same."""
        return self._new_hessian()

    @property
    def multiplied(self) -> HessianProduct | None:
        """That Hessian, if anybody has asked for it."""
        found: HessianProduct | None = vars(self).get("hessian")
        return found

    def _new_hessian(self) -> HessianProduct:
        product = HessianProduct([(self.losses, 1.0)], self.parameters, self._by_hand)
        self._check(product)
        return product

    def exact(self) -> DiagonalResult:
        """Return the exact diagonal of the GGN."""
        if self._exact is None:
            self._exact = self._summed(ggn_diagonal(self.root, self._sums, summed=True))
        return self._exact

    def affordable(self, generator: torch.Generator) -> DiagonalResult:
        """Return the diagonal of the GGN, exact where that is cheap."""
        return self.exact() if self._exact is not None or self._cheap else self._sampled(generator)

    @cached_property
    def _cheap(self) -> bool:
        """Whether the exact diagonal of the GGN is worth its price."""
        return self._sums.steps(self.root.graph, self.root.count) <= EXACT

    def _sampled(self, generator: torch.Generator) -> DiagonalResult:
        """Return the diagonal of the GGN from one draw, the same for all who ask."""
        if self._draw is None:
            self._draw = self._summed(ggn_diagonal_mc(self.root, self._sums, generator, summed=True))
        return self._draw

    def _hessian(
        self, generator: torch.Generator, ggn: Callable[[], DiagonalResult], probes: int
    ) -> DiagonalResult:
        known = self._learnt.agreement
        # Its graph is kept for others only if the diagonal itself takes products: a mere comparison is not to cost
        # its memory for the rest of the step.
        kept = known is not None and bool(known.differ)
        result, self._learnt.agreement = hessian_diagonal(
            self.losses,
            self.parameters,
            generator,
            self._outputs,
            ggn,
            known,
            (lambda: self.hessian) if kept else self._new_hessian,
            probes=probes,
        )
        return result

    def _summed(self, result: DiagonalResult) -> DiagonalResult:
        """Note that a diagonal is that of the summed losses: a multiplication less for every parameter."""
        self._sums_already.append(result)
        return result

    def scale(self, result: DiagonalResult) -> float:
        """Return what makes a diagonal and its errors those of the summed losses."""
        known = any(result.by_parameter is x.by_parameter for x in self._sums_already)
        return 1.0 if known else float(self.examples)

    def nothing(self, device: torch.device) -> Tensor:
        """Return the variance of what is exact."""
        zeros = self._learnt.zeros
        if device not in zeros:
            zeros[device] = torch.zeros((), dtype=wide_dtype(device), device=device)
        return zeros[device]
