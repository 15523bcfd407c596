r"""The generalised Gauss-Newton matrix (GGN) of a watched batch (Schraudolph, 2002).

$G = \frac{1}{N} \sum_n J_n^\top \Lambda_n J_n$ with $J_n = \partial f_n / \partial\theta$ the Jacobian of
example n's outputs and $\Lambda_n = \nabla^2_f \ell_n$: the Hessian without the network's own curvature.

Diagonals need $\sum_k \sum_n (J_n^\top v_{kn})^2$: sums of squared individual gradients, for output gradients
$v_k$. Whoever can compute that hands it in as ``square_sums``: it receives the graph of the losses and K
gradients for each output they are computed from, [K, *shape], and returns the sums by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from cockpit.engine.curvature.hessian import DiagonalResult, FlatParameters, differentiating
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.loss_roots import Root, Signed
from cockpit.engine.derivatives.derive import derivatives
from cockpit.engine.derivatives.graph import dropped_graphs_noticed
from cockpit.engine.numbers.precision import wide_dtype
from cockpit.errors import Gap

SquareSums = Callable[[LossGraph, tuple[Tensor, ...]], dict[str, Tensor]]


class GGNProduct:
    r"""$v \mapsto Gv$ on the live graph: by J (deriving $J^\top u$ by u), $\Lambda$ and $J^\top$ in turn.

    Args:
        losses: those of the batch, with a live graph.
        parameters: leaves by name; those that the outputs do not use have zero curvature.
    """

    def __init__(self, losses: LossGraph, parameters: Mapping[str, Tensor]) -> None:
        self.flat = FlatParameters(parameters)
        self.losses = losses
        self._dummies = [torch.zeros_like(x, requires_grad=True) for x in self.losses.outputs]
        noticed = dropped_graphs_noticed(self.losses.outputs)
        with differentiating(self.flat.device), noticed, torch.enable_grad():
            pulled = self._pull(self._dummies, create_graph=True)
        self._rows = [k for k, x in enumerate(pulled) if x is not None and x.requires_grad]
        self._pulled = [x for x in pulled if x is not None and x.requires_grad]

    def _pull(self, vectors: Sequence[Tensor], create_graph: bool) -> tuple[Tensor | None, ...]:
        return derivatives(self.losses.outputs, self.flat.tensors, vectors, create_graph)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return $Gv$ for one flat vector, [D]."""
        if not self._pulled:
            return torch.zeros_like(vector)
        pieces = self.flat.split(vector)
        with differentiating(self.flat.device):
            pushed = derivatives(self._pulled, self._dummies, [pieces[k] for k in self._rows])
            moved = [
                torch.zeros_like(d) if x is None else x for x, d in zip(pushed, self._dummies, strict=True)
            ]
            pulled = self._pull(self.losses.product(moved), create_graph=False)
        return self.flat.join(pulled).div_(self.losses.examples)


def ggn_diagonal(
    root: Root, square_sums: SquareSums, max_columns: int = 2048, summed: bool = False
) -> DiagonalResult:
    """Return the exact diagonal of the GGN, from all columns of the loss Hessians' root.

    Args:
        root: that root.
        square_sums: see the module.
        max_columns: more columns than this (C classes times T positions) are a `Gap`.
        summed: whether the diagonal is to be that of the summed losses, instead of their mean.
    """
    if root.count > max_columns:
        raise Gap(
            f"too_many_outputs: the exact GGN takes {root.count} backward passes, more than {max_columns}; "
            "use diag_ggn_mc"
        )
    return DiagonalResult(_added(root, root.columns(), square_sums, summed), "ggn")


def ggn_diagonal_mc(
    root: Root,
    square_sums: SquareSums,
    generator: torch.Generator,
    samples: int = 1,
    summed: bool = False,
) -> DiagonalResult:
    """Return an unbiased estimate of the GGN's diagonal, by one call of ``square_sums`` a sample.

    With two samples or more their spread gives the traces' standard errors. Arguments as `ggn_diagonal`.
    """
    drawn = [_added(root, root.draw(generator), square_sums, summed) for _ in range(max(samples, 1))]
    if len(drawn) == 1:
        return DiagonalResult(drawn[0], "ggn_mc")
    mean = {name: torch.stack([d[name] for d in drawn]).mean(0) for name in drawn[0]}
    traces = {n: torch.stack([d[n].sum(dtype=wide_dtype(d[n].device)) for d in drawn]) for n in mean}
    return DiagonalResult(mean, "ggn_mc", *standard_errors(traces))


def standard_errors(traces: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the standard errors of mean traces, by parameter and of their sum, from samples [M] of each."""
    count = len(next(iter(traces.values())))
    device = next(iter(traces.values())).device
    total = torch.stack([t.to(device) for t in traces.values()]).sum(0)
    return {n: t.std() / count**0.5 for n, t in traces.items()}, total.std() / count**0.5


def _added(root: Root, vectors: Iterable[Signed], square_sums: SquareSums, summed: bool) -> dict[str, Tensor]:
    """Return the signed sums of squares of all columns, summed over the examples or a mean over them."""
    graph, total = root.graph, dict[str, Tensor]()
    for sign, columns in vectors:
        # where half precision could not hold them, small vectors are scaled as sums
        early = not summed and not any(x.dtype in (torch.float16, torch.bfloat16) for x in columns)
        found = square_sums(graph, tuple(x * graph.examples**-0.5 for x in columns) if early else columns)
        factor = sign if early or summed else sign / graph.examples
        for name, value in found.items():
            share = value if factor == 1 else value * factor
            total[name] = total[name] + share if name in total else share
    if not total:  # no curvature at all: learn names and shapes from a vector of zeros
        return square_sums(graph, tuple(torch.zeros_like(x)[None] for x in graph.outputs))
    return total
