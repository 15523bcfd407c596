r"""Products with the Hessian of a watched batch, on the live graph of its losses.

Always $H = \sum_k w_k \frac{1}{N_k} \sum_i \nabla^2 \ell_i$ over micro-batches $k$ (one batch: $w = 1$).
Vectors are flat: all parameters one after the other, in the order of the mapping that names them. Nothing
here writes ``.grad``, draws a random number or frees a graph, so the user's backward pass can follow.

Products are made by double backward alone, the only way on a graph that is already there. Forward-over-reverse needs
tangents in the forward pass, which was the user's and is over; finite differences need it again at shifted parameters.
To run the model once more is not ours: dropout would draw and BatchNorm count another time, the module may depend on
state we do not see, and parameters would have to be written during the user's step. A gradient of the gradient whose
graph is built once costs about two backward passes, less than either.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cockpit.engine.derivatives.derive import by_hand
from cockpit.engine.derivatives.gradient_graph import GradientGraph
from cockpit.engine.derivatives.graph import dropped_graphs_noticed
from cockpit.engine.derivatives.lean_gradients import lean_gradients
from cockpit.engine.numbers.precision import wide_dtype, without_autocast
from cockpit.errors import Gap


@contextmanager
def differentiating(device: torch.device, word: str = "no_double_backward") -> Iterator[None]:
    """Run autograd calls with autocast off; what torch cannot differentiate is a `Gap` named ``word``."""
    try:
        with without_autocast(device.type):
            yield
    except torch.OutOfMemoryError as error:
        raise Gap("out_of_memory: curvature did not fit into the device's memory") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise Gap(f"{word}: {reason[:157]}..." if len(reason) > 160 else f"{word}: {reason}") from error


class FlatParameters:
    """The coordinates of curvature: named parameters laid out as one vector.

    A tensor known under two names counts once, under the first of them. The vector is float32 where
    parameters are of half precision, and lives on the device of the first parameter.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        unique: dict[int, str] = {}
        for name, tensor in parameters.items():
            unique.setdefault(id(tensor), name)
        if not any(p.numel() for p in parameters.values()):
            raise Gap("no_parameters: nothing to differentiate by")
        self.names = tuple(unique.values())
        self.tensors = tuple(parameters[name] for name in self.names)
        self.sizes = [p.numel() for p in self.tensors]
        self.size = sum(self.sizes)
        self.device = self.tensors[0].device
        doubles = any(p.dtype == torch.float64 for p in self.tensors)
        self.dtype = torch.float64 if doubles else torch.float32
        # torch joins and splits such tensors in one call each (but makes no copy of one alone, and loses empty shapes)
        self._alike = len(self.sizes) > 1 and all(
            p.dtype == self.dtype and p.device == self.device and p.numel() for p in self.tensors
        )

    def join(self, tensors: Sequence[Tensor | None], rows: int | None = None) -> Tensor:
        """Return one flat vector, or ``rows`` of them, from one tensor per parameter; None is zero."""
        if rows is None and self._alike and not any(t is None or t.requires_grad for t in tensors):
            joined: Tensor = _flatten_dense_tensors(tensors)
            return joined
        lead = () if rows is None else (rows,)
        parts = [
            torch.zeros(*lead, size, dtype=self.dtype, device=self.device)
            if tensor is None
            else (tensor.detach() if tensor.requires_grad else tensor)
            .reshape(*lead, size)
            .to(device=self.device, dtype=self.dtype)
            for tensor, size in zip(tensors, self.sizes, strict=True)
        ]
        return torch.cat(parts, dim=-1)  # one copy for all parameters

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return the pieces of a flat vector (or of rows of them), shaped and typed like the parameters."""
        if flat.ndim == 1 and self._alike:
            return list(_unflatten_dense_tensors(flat, self.tensors))
        pieces = flat.split(self.sizes, dim=-1)
        return [
            piece.reshape(flat.shape[:-1] + p.shape).to(device=p.device, dtype=p.dtype)
            for piece, p in zip(pieces, self.tensors, strict=True)
        ]

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the pieces of a flat vector by parameter name, shaped like the parameters."""
        pieces = flat.split(self.sizes)
        return {n: x.reshape(p.shape) for n, x, p in zip(self.names, pieces, self.tensors, strict=True)}


class HessianProduct:
    r"""$v \mapsto Hv$ by double backward (Pearlmutter, 1994); the gradient graph is built once and re-used.

    Args:
        batches: (losses [N], weight) of every micro-batch; the graphs must be live.
        parameters: leaves by name; those that the losses do not use have zero curvature.
        hand: whether to derive by hand.
    """

    def __init__(
        self, batches: Sequence[tuple[Tensor, float]], parameters: Mapping[str, Tensor], hand: bool = False
    ) -> None:
        self.flat = FlatParameters(parameters)
        self.products = 0
        self._batchable = True
        starts = [losses for losses, _ in batches]
        noticed, lean = dropped_graphs_noticed(starts), lean_gradients(starts)
        hands = by_hand() if hand else nullcontext()
        with differentiating(self.flat.device), noticed, lean, hands, torch.enable_grad():
            weights = [torch.full_like(losses, weight / losses.numel()) for losses, weight in batches]
            self._gradient = GradientGraph(starts, self.flat.tensors, weights)

    def __call__(self, vector: Tensor) -> Tensor:
        """Return $Hv$ for one flat vector, [D]."""
        return self._product(vector, rows=None)

    def rows(self, vectors: Tensor) -> Tensor:
        """Return $H v_k$ for flat vectors in rows, [K, D], in one batched pass or one by one."""
        if self._batchable:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # slow batching rules are announced; the result is right
                    return self._product(vectors, rows=len(vectors))
            except Gap:
                self._batchable = False
        return torch.stack([self(vector) for vector in vectors])

    def _product(self, vector: Tensor, rows: int | None) -> Tensor:
        self.products += 1 if rows is None else rows
        if self._gradient.constant:
            return torch.zeros_like(vector)
        with differentiating(self.flat.device), torch.no_grad():
            columns = self._gradient.derived(self.flat.split(vector), batched=rows is not None)
        return self.flat.join(columns, rows)


def insist_symmetric(product: HessianProduct, generator: torch.Generator) -> None:
    r"""Compare $u^\top H v$ with $v^\top H u$: some operations of torch have wrong second derivatives.

    (`torch._weight_norm` of torch 2.13, for one.) A `Gap` is better than a number nobody should believe.
    """
    flat = product.flat
    u, v = torch.randn(2, flat.size, dtype=flat.dtype, device=flat.device, generator=generator)
    hu, hv = product(u), product(v)
    scale = float(u.norm() * hv.norm() + v.norm() * hu.norm())
    epsilon = max(float(torch.finfo(x.dtype).eps) for x in flat.tensors)
    if abs(float(u @ hv - v @ hu)) > 10 * epsilon**0.5 * scale:
        raise Gap(
            "asymmetric: the second derivative of some operation of the model is wrong, H is not symmetric"
        )


@dataclass(frozen=True, eq=False)
class DiagonalResult:
    r"""The diagonal of a curvature matrix of $\frac{1}{N}\sum_i \ell_i$, and how it was found.

    Attributes:
        by_parameter: diagonal entries, shaped like the parameters.
        method: ``ggn`` and ``dense`` (exact), ``hessian=ggn`` (exact, by the generalised Gauss-Newton matrix
            where both diagonals agree), ``ggn_mc`` and ``hutchinson`` (unbiased estimates).
        standard_error: of each parameter's trace, where the method is an estimate with at least two samples.
        total_standard_error: likewise of the trace over all parameters.
    """

    by_parameter: dict[str, Tensor]
    method: str
    standard_error: dict[str, Tensor] | None = None
    total_standard_error: Tensor | None = None

    @property
    def trace_by_parameter(self) -> dict[str, Tensor]:
        """Sum of the diagonal entries of each parameter, zero-dimensional."""
        return {n: d.sum(dtype=wide_dtype(d.device)) for n, d in self.by_parameter.items()}
