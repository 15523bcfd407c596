r"""The part of the graph between a model's outputs and its losses, and its second derivatives.

$\Lambda_n = \nabla^2_f \ell_n$ is the Hessian of example n's loss by its C output numbers: those of all
output tensors, flattened, one tensor after the other. Products with it run through the loss functions only,
never through the network. *Rows* are tensors [N, C] in that order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.curvature.hessian import differentiating
from cockpit.engine.derivatives.derive import derivatives, is_by_hand
from cockpit.engine.derivatives.graph import dropped_graphs_noticed, edge, edges_behind, frontier
from cockpit.engine.layers.formula import Layout
from cockpit.errors import Gap

Operations = tuple[Any, ...]

DENSE = 512
"""Up to so many output numbers an example, the loss Hessians are written out."""
BLOCK = 2**24
"""How many numbers of a batched product are held at once."""


class LossGraph:
    """Losses as a function of the outputs they are directly computed from.

    Attributes:
        outputs: those outputs.
        layouts: where the examples are in each of them.
        losses: those losses.
        examples: number of examples N.
        numbers: output numbers C of one example.
        epsilon: relative rounding error of the coarsest dtype between outputs and losses.
        tolerance: relative error that counts as rounding in what is computed from them.
        operations: what lies between outputs and losses. Losses of the same operations are the same function.

    Args:
        losses: one loss per example, [N], with a live graph.
        outputs: the tensors that the model returned, on that graph.
        parameters: where given, losses that use them past the outputs are a `Gap`.
        layouts: where the examples are in the outputs, if that is known of losses of the same operations;
            nothing is then examined that a GPU would have to be waited for.
    """

    def __init__(
        self,
        losses: Tensor,
        outputs: Sequence[Tensor],
        parameters: Mapping[str, Tensor] | None = None,
        layouts: Callable[[Operations], tuple[Layout, ...] | None] = lambda operations: None,
    ) -> None:
        self.examples = losses.numel()
        places = frontier(losses, outputs, parameters or {})
        self.outputs = tuple(outputs[k] for k in places)
        self.device = self.outputs[0].device
        self.operations = operations(losses, self.outputs)
        known = layouts(self.operations)
        if known is None or (self.device.type == "cpu" and not is_by_hand()):
            insist_finite(losses)
        self.epsilon = float(max(torch.finfo(x.dtype).eps for x in (losses, *self.outputs)))
        self.tolerance = min(10 * self.epsilon**0.75, 0.05)
        self.losses, self._examined = losses, known is not None
        self.layouts = self._find_layouts(losses) if known is None else known
        self.sizes = [x.numel() // self.examples for x in self.outputs]
        self.numbers = sum(self.sizes)

    @cached_property
    def _gradient(self) -> tuple[Tensor, ...]:
        """The gradient by the outputs, with its graph."""
        losses = self.losses
        noticed = nullcontext() if self._examined else dropped_graphs_noticed([losses], self.outputs)
        with differentiating(self.device), noticed, torch.enable_grad():
            found = tuple(
                g
                for g in derivatives(losses, self.outputs, torch.ones_like(losses), create_graph=True)
                if g is not None
            )
        if not any(g.requires_grad for g in found):
            raise Gap(
                "no_outputs: the losses are linear in what the model returned, which leaves no curvature; "
                "does the model return its own losses?"
            )
        return found

    def slope(self) -> tuple[Tensor, ...]:
        """Return the gradient by the outputs, without its graph."""
        with differentiating(self.device):
            found = derivatives(self.losses, self.outputs, torch.ones_like(self.losses))
        return tuple(g for g in found if g is not None)

    def _find_layouts(self, losses: Tensor) -> tuple[Layout, ...]:
        """Weigh the losses; the gradients must be weighted along the axis of the examples, and only there."""
        weights = 1 + torch.arange(self.examples, dtype=losses.dtype, device=losses.device) / self.examples
        with differentiating(self.device), torch.enable_grad():
            weighed = torch.autograd.grad((weights * losses.flatten()).sum(), self.outputs, retain_graph=True)
        if not all(bool(g.isfinite().all()) for g in weighed):
            raise Gap("nonfinite: the gradients at the model's outputs hold inf or nan")
        found = []
        for output, plain, weighted in zip(self.outputs, self._gradient, weighed, strict=True):
            shape, n = tuple(output.shape), self.examples
            exact = [Layout(k) for k in (0, 1) if len(shape) > k and shape[k] == n]
            several = [Layout(0), Layout(0, minor=True)] if shape and shape[0] % n == 0 else []
            if n == 1:
                exact, several = [Layout(0)], []
            if not exact + several:
                raise Gap(f"no_outputs: no axis of the output {list(shape)} counts the {n} examples")
            scale = self.tolerance * weighted.abs().max()
            for layout in exact + several:
                expected = plain.detach() * layout.expand(weights.to(plain), plain)
                if bool(((weighted - expected).abs() <= scale).all()):
                    found.append(layout)
                    break
            else:
                raise Gap("coupled_losses: the loss of one example depends on the outputs of another")
        return tuple(found)

    def rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors shaped like the outputs as rows [N, C]."""
        n = self.examples
        parts = [
            x.reshape(1, 1) if x.ndim == 0 else layout.split(x, n, 0)
            for x, layout in zip(tensors, self.layouts, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def tensors(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows [N, C] as tensors shaped like the outputs."""
        return tuple(x[0] for x in self.stacked(rows[None]))

    def stacked(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return K times rows, [K, N, C], as tensors [K, *shape] for each output."""
        parts = rows.split(self.sizes, 2)
        return tuple(
            unsplit(part, x, layout, self.examples).to(x.dtype)
            for part, x, layout in zip(parts, self.outputs, self.layouts, strict=True)
        )

    def product(self, tensors: Sequence[Tensor], batched: bool = False) -> tuple[Tensor, ...]:
        r"""Return $\Lambda_n u_n$ of all examples, u shaped like the outputs (``batched``: K of each)."""
        kept = [k for k, g in enumerate(self._gradient) if g.requires_grad]
        with differentiating(self.device):
            slopes, columns = [self._gradient[k] for k in kept], [tensors[k] for k in kept]
            results = derivatives(slopes, self.outputs, columns, batched=batched)
        return tuple(torch.zeros_like(u) if r is None else r for r, u in zip(results, tensors, strict=True))

    def probe(self, seed: int) -> tuple[Tensor, ...]:
        """Return normal random numbers shaped like the outputs, on one device always the same."""
        source = torch.Generator(self.device).manual_seed(seed)
        return tuple(
            torch.randn(x.shape, dtype=torch.float32, device=self.device, generator=source).to(x)
            for x in self.outputs
        )

    def dense(self) -> Tensor:
        r"""Return all $\Lambda_n$, [N, C, C]."""
        n, c = self.examples, self.numbers
        columns = []
        for block in torch.eye(c, dtype=self.outputs[0].dtype, device=self.device).split(
            max(1, BLOCK // (n * c))
        ):
            units = [self.tensors(unit.expand(n, c)) for unit in block]
            columns += [self.rows(column) for column in self._products(units)]
        found = torch.stack(columns, dim=2)
        probe = self.rows(self.probe(0))
        true = self.rows(self.product(self.tensors(probe)))
        error = (torch.einsum("nij,nj->ni", found, probe) - true).abs().max()
        if not bool(error <= self.tolerance * c * found.abs().max()):
            raise Gap("coupled_losses: the losses' second derivatives mix examples (or are not finite)")
        return (found + found.transpose(1, 2)) / 2

    def _products(self, vectors: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # slow batching rules are announced; the result is right
                stacked = self.product([torch.stack(x) for x in zip(*vectors, strict=True)], batched=True)
                return list(zip(*stacked, strict=True))
        except Gap:
            return [self.product(vector) for vector in vectors]


def unsplit(rows: Tensor, like: Tensor, layout: Layout, examples: int) -> Tensor:
    """Undo `Layout.split` K times: [K, N, T, *features] become [K, *shape] of the tensor it came from."""
    if like.ndim == 0:
        return rows.reshape(-1)
    axis, repeats = layout.axis, like.shape[layout.axis] // examples
    if axis == 0 and (repeats == 1 or not layout.minor):
        return rows.reshape(len(rows), *like.shape)
    sizes = (repeats, examples) if layout.minor else (examples, repeats)
    place = axis + int(layout.minor)
    shape = [*like.shape[:axis], *sizes, *like.shape[axis + 1 :]]
    shape.insert(0, shape.pop(place))
    return rows.reshape(len(rows), *shape).movedim(1, 1 + place).flatten(1 + axis, 2 + axis)


def insist_finite(losses: Tensor) -> None:
    """Raise a `Gap` if some loss is not finite; their sum tells at a glance that all are."""
    seen = losses.detach()
    if not isfinite(float(seen.sum())) and not bool(seen.isfinite().all()):
        raise Gap("nonfinite: the losses hold inf or nan")


def operations(losses: Tensor, outputs: Sequence[Tensor]) -> Operations:
    """Name the operations between outputs and losses, and the outputs' dtypes and axes of examples."""
    n = losses.numel()
    walls = [e for e in map(edge, outputs) if e is not None]
    starts = [e for e in (edge(losses),) if e is not None]
    names = sorted(node.name() for node, _ in edges_behind(starts, walls).difference(walls))
    return (*names, *((x.dtype, n == 1, *(size % n == 0 for size in x.shape)) for x in outputs))


def loss_hessian(losses: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    r"""Return $\Lambda_n = \nabla^2_f \ell_n$ of every example, [N, C, C]; C is at most `DENSE`."""
    graph = LossGraph(losses, outputs)
    if graph.numbers > DENSE:
        raise Gap(f"too_many_outputs: {graph.numbers} numbers an example, at most {DENSE} are written out")
    return graph.dense()
