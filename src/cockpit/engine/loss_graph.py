r"""The part of the graph between a model's outputs and its losses, and its second derivatives.

$\Lambda_n = \nabla^2_f \ell_n$ is the Hessian of example n's loss by its C output numbers: those of all
output tensors, flattened, one tensor after the other. Products with it run through the loss functions only,
never through the network. *Rows* are tensors [N, C] in that order.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cockpit.engine.curvature import differentiating
from cockpit.engine.graph import dropped_graphs_noticed, frontier
from cockpit.engine.layers.formula import Layout
from cockpit.errors import Gap

DENSE = 512
"""Up to so many output numbers an example, the loss Hessians are written out."""
BLOCK = 2**24
"""How many numbers of a batched product are held at once."""


class LossGraph:
    """Losses as a function of the outputs they are directly computed from.

    Attributes:
        outputs: those outputs.
        layouts: where the examples are in each of them.
        examples: number of examples N.
        numbers: output numbers C of one example.
        epsilon: relative rounding error of the coarsest dtype between outputs and losses.
        tolerance: relative error that counts as rounding in what is computed from them.
    """

    def __init__(
        self, losses: Tensor, outputs: Sequence[Tensor], parameters: Mapping[str, Tensor] | None = None
    ) -> None:
        if not bool(losses.isfinite().all()):
            raise Gap("nonfinite: the losses hold inf or nan")
        self.examples = losses.numel()
        self.given = tuple(outputs)
        self.places = frontier(losses, self.given, parameters or {})
        self.outputs = tuple(self.given[k] for k in self.places)
        self.device = self.outputs[0].device
        self.epsilon = float(max(torch.finfo(x.dtype).eps for x in (losses, *self.outputs)))
        self.tolerance = min(10 * self.epsilon**0.75, 0.05)
        noticed = dropped_graphs_noticed([losses], self.outputs)
        with differentiating(self.device), noticed, torch.enable_grad():
            self._gradient = torch.autograd.grad(
                losses.sum(), self.outputs, retain_graph=True, create_graph=True
            )
        if not any(g.requires_grad for g in self._gradient):
            raise Gap(
                "no_outputs: the losses are linear in what the model returned, which leaves no curvature; "
                "does the model return its own losses?"
            )
        self.layouts = self._find_layouts(losses)
        self.sizes = [x.numel() // self.examples for x in self.outputs]
        self.numbers = sum(self.sizes)

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
        return torch.cat(parts, dim=1)

    def tensors(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows [N, C] as tensors shaped like the outputs."""
        return tuple(
            unsplit(part, x, layout, self.examples).to(x.dtype)
            for part, x, layout in zip(rows.split(self.sizes, 1), self.outputs, self.layouts, strict=True)
        )

    def for_all(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return one tensor for each that the model returned: zeros where it takes no part in the losses."""
        used = dict(zip(self.places, tensors, strict=True))
        return tuple(used[k] if k in used else torch.zeros_like(x) for k, x in enumerate(self.given))

    def product(self, tensors: Sequence[Tensor], batched: bool = False) -> tuple[Tensor, ...]:
        r"""Return $\Lambda_n u_n$ of all examples, u shaped like the outputs (``batched``: K of each)."""
        kept = [k for k, g in enumerate(self._gradient) if g.requires_grad]
        with differentiating(self.device):
            results = torch.autograd.grad(
                [self._gradient[k] for k in kept],
                self.outputs,
                grad_outputs=[tensors[k] for k in kept],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        return tuple(torch.zeros_like(u) if r is None else r for r, u in zip(results, tensors, strict=True))

    def probe(self, seed: int) -> tuple[Tensor, ...]:
        """Return normal random numbers shaped like the outputs, always the same."""
        source = torch.Generator("cpu").manual_seed(seed)
        return tuple(
            torch.randn(x.shape, dtype=torch.float32, device="cpu", generator=source).to(x)
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
    """Undo `Layout.split`: shape [N, T, *features] like the tensor it came from."""
    if like.ndim == 0:
        return rows.reshape(())
    repeats = like.shape[layout.axis] // examples
    sizes = (repeats, examples) if layout.minor else (examples, repeats)
    place = layout.axis + int(layout.minor)
    moved = like.unflatten(layout.axis, sizes).movedim(place, 0).shape
    return rows.reshape(moved).movedim(0, place).flatten(layout.axis, layout.axis + 1)


def loss_hessian(losses: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    r"""Return $\Lambda_n = \nabla^2_f \ell_n$ of every example, [N, C, C]; C is at most `DENSE`."""
    graph = LossGraph(losses, outputs)
    if graph.numbers > DENSE:
        raise Gap(f"too_many_outputs: {graph.numbers} numbers an example, at most {DENSE} are written out")
    return graph.dense()
