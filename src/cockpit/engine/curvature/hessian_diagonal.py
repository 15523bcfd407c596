r"""The diagonal of the Hessian, exact where that is affordable and estimated with an error bar where not.

1. Networks that are piecewise linear in every single parameter tensor (ReLU, max-pooling, no weight used
   twice) have the diagonal of the generalised Gauss-Newton matrix. Whether a network is one is read off its
   graph where all operations are known (`cockpit.engine.curvature.linearity`), and seen from its
   action: for a random vector $v$ on one tensor p alone, $(Hv)_p = (Gv)_p$, for one tensor then and for every one
   otherwise. What was learnt is an `Agreement`, to be handed in again at the next step; while the graph is made of the
   same operations, it is examined again only rarely, and the GGN is all that has to be computed.
2. With few parameters, one Hessian product for each of them.
3. Otherwise $\mathbb{E}[z \odot Hz]$ for random signs $z$ (Hutchinson, 1989; Bekas et al., 2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cockpit.engine.curvature.ggn import GGNProduct
from cockpit.engine.curvature.hessian import DiagonalResult, HessianProduct
from cockpit.engine.curvature.linearity import is_linear_in_each
from cockpit.engine.curvature.loss_graph import LossGraph, insist_finite
from cockpit.engine.derivatives.derive import is_by_hand
from cockpit.engine.derivatives.graph import names_behind
from cockpit.engine.numbers.precision import NONFINITE, wide_dtype
from cockpit.errors import Gap

ROWS = 32
"""How many Hessian products are computed at once; each holds the gradients of all activations."""


PROOFS = 4
"""How many steps in a row a parameter is compared whose block has always vanished; then it is compared rarely."""


@dataclass(frozen=True)
class Agreement:
    """What is known about the diagonal blocks of Hessian and GGN of one network structure.

    Attributes:
        differ: why the GGN cannot stand in for the Hessian, empty while nothing speaks against it.
        confirmed: parameters whose blocks must agree by the graph, or agreed while they were not zero. The others
            are compared at every use: at some initialisations a block vanishes at first, whatever the network.
        turn: counts uses; decides what is compared, and which confirmed parameter is compared again.
        operations: of the graph that was examined; of another graph nothing is known.
    """

    differ: str = ""
    confirmed: frozenset[str] = frozenset()
    turn: int = 0
    operations: tuple[str, ...] = ()

    def next(self) -> Agreement:
        """Return the same after another use at which nothing was compared."""
        return Agreement(self.differ, self.confirmed, self.turn + 1, self.operations)

    def due(self, names: Sequence[str]) -> list[str]:
        """Return the parameters to compare now.

        Those not confirmed, and (at the 1st, 2nd, 4th, 8th, ... use) one of the others in turn.
        """
        rarely = self.turn & (self.turn - 1) == 0
        if not rarely and self.turn >= PROOFS:
            return []
        known = [name for name in names if name in self.confirmed]
        again = {known[self.turn.bit_length() % len(known)]} if known and rarely else set()
        return [n for n in names if n in again or n not in self.confirmed]


def hessian_diagonal(
    losses: Tensor,
    parameters: Mapping[str, Tensor],
    generator: torch.Generator,
    outputs: Sequence[Tensor] = (),
    ggn: Callable[[], DiagonalResult] | None = None,
    agreement: Agreement | None = None,
    product: Callable[[], HessianProduct] | None = None,
    dense_limit: int = 1024,
    probes: int = 16,
) -> tuple[DiagonalResult, Agreement]:
    """Return the diagonal of a batch's Hessian and what was learnt about its agreement with the GGN.

    Args:
        losses: one loss per example, [N], with a live graph.
        parameters: leaves by name.
        generator: source of all random numbers.
        outputs: the tensors that the model returned; without them the GGN is not considered.
        ggn: computes the diagonal of the GGN of the same losses; without it the GGN is not considered.
        agreement: what an earlier call returned for the same structure (model, shapes, losses).
        product: returns the Hessian product of the same losses and parameters.
        dense_limit: largest number of parameters for one product each.
        probes: random vectors of the estimate.
    """
    made = product or (lambda: HessianProduct([(losses, 1.0)], parameters))
    seen = names_behind(losses)
    if agreement is None or agreement.operations not in ((), seen):
        agreement = Agreement()
    agreement = replace(agreement, operations=seen)
    if ggn is not None and outputs and not agreement.differ:
        try:
            if agreement.due(list(parameters)):
                insist_finite(losses)
                graph = LossGraph(losses, outputs, parameters)
                if not agreement.turn and is_linear_in_each(graph.outputs, list(parameters.values())):
                    agreement = replace(agreement, confirmed=frozenset(parameters))
                agreement = compare(made, graph, parameters, agreement, generator)
            else:
                agreement = agreement.next()
            if not agreement.differ:
                found = ggn()
                return replace(found, method=f"hessian={found.method}"), agreement
        except Gap as gap:
            if str(gap).startswith(("nonfinite", "out_of_memory")):
                raise  # says nothing about the network's structure
            agreement = replace(agreement, differ=str(gap))
    if not is_by_hand():
        insist_finite(losses)
    hessian = made()
    if hessian.flat.size <= dense_limit:
        return dense_diagonal(hessian), agreement
    return hutchinson_diagonal(hessian, generator, probes), agreement


def compare(
    product: Callable[[], HessianProduct],
    graph: LossGraph,
    parameters: Mapping[str, Tensor],
    agreement: Agreement,
    generator: torch.Generator,
) -> Agreement:
    """Compare diagonal blocks of both matrices by their action on random vectors of unit length.

    The blocks are multiplied with one after the other, each by graphs of its own: it is done rarely, and what counts
    is that a training with little memory to spare survives it.
    """
    scale, units = _scale(product(), generator)  # what rounding errors are measured by
    epsilon = max(graph.epsilon, *(float(torch.finfo(parameters[name].dtype).eps) for name in units))
    tolerance = min(3 * epsilon**0.5, 1e-2)
    confirmed = set(agreement.confirmed)
    for name in agreement.due([name for name, unit in units.items() if len(unit)]):
        block = {name: parameters[name]}
        ours = HessianProduct([(graph.losses, 1.0)], block)(units[name])
        theirs = GGNProduct(graph, block)(units[name])
        length = float(torch.maximum(ours.norm(), theirs.norm()))
        if not float((ours - theirs).norm()) <= tolerance * length + min(100 * epsilon, 1e-2) * scale:
            return replace(agreement, differ=f"not_piecewise_linear: in {name}", turn=agreement.turn + 1)
        if length > 1000 * epsilon * scale:
            confirmed.add(name)
    return replace(agreement, confirmed=frozenset(confirmed), turn=agreement.turn + 1)


def _scale(hessian: HessianProduct, generator: torch.Generator) -> tuple[float, dict[str, Tensor]]:
    """Return random signs of unit length for every parameter, and how long the Hessian makes them together."""
    flat = hessian.flat
    signs = _signs(flat.size, flat.dtype, flat.device, generator)
    units = dict(zip(flat.names, signs.split(flat.sizes), strict=True))
    for unit in units.values():
        unit.div_(max(len(unit), 1) ** 0.5)
    scale = float(hessian(signs).norm())
    if not math.isfinite(scale):
        raise Gap(NONFINITE)
    return scale, units


def dense_diagonal(product: HessianProduct) -> DiagonalResult:
    """Return the exact diagonal by one product for each parameter, many at a time."""
    flat = product.flat
    diagonal = torch.empty(flat.size, dtype=flat.dtype, device=flat.device)
    for start in range(0, flat.size, ROWS):
        stop = min(start + ROWS, flat.size)
        units = torch.zeros(stop - start, flat.size, dtype=flat.dtype, device=flat.device)
        units[:, start:stop].fill_diagonal_(1)
        diagonal[start:stop] = product.rows(units)[:, start:stop].diagonal()
    return DiagonalResult(flat.by_name(diagonal), "dense")


def hutchinson_diagonal(product: HessianProduct, generator: torch.Generator, probes: int) -> DiagonalResult:
    r"""Return the mean of $z \odot Hz$ over random signs z, with the standard errors of its traces.

    A trace varies by $2 \sum_{i \neq j} H_{ij}^2$ from sign to sign, and $\mathbb{E}\|Hz\|^2 = \sum_{ij} H_{ij}^2$: one
    vector is enough to tell its own error, but for the diagonal, which counts as well then. Several tell that, too,
    by the products of their samples. Of a parameter's block it is the most that the variance can be: what the block has
    in common with the others counts half.
    """
    flat, count = product.flat, max(probes, 1)
    signs = [_signs(flat.size, flat.dtype, flat.device, generator) for _ in range(count)]
    if count == 1 or flat.device.type == "cpu":  # where several at once take longer than one after the other
        samples = torch.stack([z * product(z) for z in signs])
    else:
        samples = torch.cat([z * product.rows(z) for z in torch.stack(signs).split(ROWS)])
    parts = zip(flat.names, samples.split(flat.sizes, dim=1), strict=True)
    variances = {name: _variance(part) for name, part in parts}
    total = torch.stack(list(variances.values())).sum()
    errors = {name: variance.sqrt() for name, variance in variances.items()}
    return DiagonalResult(flat.by_name(samples.mean(0)), "hutchinson", errors, total.sqrt())


def _variance(samples: Tensor) -> Tensor:
    """Return the variance of a mean trace, from samples [K, size] of the diagonal."""
    count, wide = len(samples), wide_dtype(samples.device)

    def squares(x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dtype=wide)
        return length.square()

    all_of_it = squares(samples) / count
    if count == 1:
        return 2 * all_of_it
    diagonal = (squares(samples.sum(0)) / count - all_of_it) / (count - 1)
    return (2 * (all_of_it - diagonal) / count).clamp_min(0)


def _signs(size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Tensor:
    """Return random signs; each bit that is drawn makes one."""
    there, kind = generator.device, torch.int8
    octets = torch.randint(-128, 128, (-(-size // 8),), dtype=kind, device=there, generator=generator)
    places = torch.arange(8, dtype=kind, device=there)
    bits = octets[:, None].bitwise_right_shift(places).bitwise_and_(1).view(-1)[:size]
    return bits.to(device=device, dtype=dtype).mul_(2).sub_(1)
