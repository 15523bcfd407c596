r"""Roots of the loss Hessians: vectors whose outer products add up to $\Lambda_n$, all at once or on average.

$\Lambda_n = \sum_c \pm s_{nc} s_{nc}^\top$ makes the diagonal of $J_n^\top \Lambda_n J_n$ the signed sum of
$(J_n^\top s_{nc})^2$; one random vector with $\mathbb{E}[v_n v_n^\top] = \Lambda_n$ estimates it. Softmax
cross-entropy and losses that act on every output number by itself (squared errors, binary cross-entropy) are
recognised by their action on random vectors, whoever wrote them; they need no matrix and draw the textbook's
samples: labels from the model's own prediction, and normal numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.layers.formula import Layout
from cockpit.engine.loss_graph import DENSE, LossGraph, unsplit
from cockpit.engine.parts import wide
from cockpit.errors import Gap

Signed = tuple[float, tuple[Tensor, ...]]
"""A sign and vectors s_n of all examples, shaped like the outputs that take part in the losses."""


class Root(ABC):
    """A root of all loss Hessians of a batch; ``count`` is how many columns it has at most."""

    count: int

    @abstractmethod
    def columns(self) -> Iterator[Signed]:
        """Yield columns whose signed outer products add up to the loss Hessians."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield one random vector (two for an indefinite loss) whose outer product is right on average."""


@dataclass(frozen=True, eq=False)
class SoftmaxRoot(Root):
    r"""Cross-entropy at every position: $\Lambda = \kappa\,(\mathrm{diag}(p) - pp^\top)$.

    Columns are $\sqrt{\kappa p_c}\,(e_c - p)$; a draw is $\sqrt\kappa\,(p - e_{\hat y})$ with labels
    $\hat y \sim p$, independent over the T positions of an example.
    """

    output: Tensor
    layout: Layout
    axis: int
    probabilities: Tensor
    """[N, T, C]"""
    weights: Tensor
    """κ, [N, T]"""

    @property
    def count(self) -> int:  # type: ignore[override]
        """T·C."""
        return self.probabilities[0].numel()

    def columns(self) -> Iterator[Signed]:
        """Yield a column for every class of every position that counts."""
        p = self.probabilities
        for t in used(self.weights):
            for c in range(p.shape[2]):
                column = torch.zeros_like(p)
                column[:, t] = -p[:, t]
                column[:, t, c] += 1
                column[:, t] *= (self.weights[:, t] * p[:, t, c]).sqrt().unsqueeze(1)
                yield 1.0, self._shaped(column)

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield the gradient for labels that the model draws itself."""
        p = self.probabilities
        share = torch.rand(*p.shape[:2], 1, dtype=p.dtype, device=generator.device, generator=generator)
        reached = p.cumsum(2)
        labels = (reached < share.to(p.device) * reached[..., -1:]).sum(2, keepdim=True)
        vector = p.scatter_add(2, labels.clamp_max(p.shape[2] - 1), -torch.ones_like(p[..., :1]))
        yield 1.0, self._shaped(vector * self.weights.sqrt().unsqueeze(2))

    def _shaped(self, rows: Tensor) -> tuple[Tensor]:
        like = self.output.movedim(self.axis, -1)
        found = unsplit(rows, like, self.layout, len(rows)).movedim(-1, self.axis)
        return (found.to(self.output.dtype),)


@dataclass(frozen=True, eq=False)
class SeparateRoot(Root):
    r"""A loss of each number by itself: $\Lambda = \mathrm{diag}(c)$; a draw is $\sqrt{c} \odot N(0, I)$."""

    graph: LossGraph
    entries: Tensor
    """c, [N, C]"""

    @property
    def count(self) -> int:  # type: ignore[override]
        """C."""
        return self.entries.shape[1]

    def columns(self) -> Iterator[Signed]:
        """Yield a column for every output number."""
        for sign in (1.0, -1.0):
            part = (sign * self.entries).clamp_min(0).sqrt()
            for c in used(part):
                column = torch.zeros_like(part)
                column[:, c] = part[:, c]
                yield sign, self.graph.tensors(column)

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield weighted normal numbers."""
        for sign in (1.0, -1.0):
            part = (sign * self.entries).clamp_min(0).sqrt()
            if sign > 0 or used(part):
                yield sign, self.graph.tensors(part * normal(part, generator))


@dataclass(frozen=True, eq=False)
class DenseRoot(Root):
    r"""Any loss with few outputs: columns $\sqrt{|\lambda_c|}\, q_c$ from eigenvalues and eigenvectors."""

    graph: LossGraph
    positive: Tensor
    """Columns of the positive part, largest eigenvalue last, [N, C, C]"""
    negative: Tensor

    @classmethod
    def of(cls, graph: LossGraph) -> DenseRoot:
        """Decompose all loss Hessians; eigenvalues that are mere rounding count as zero."""
        values, vectors = torch.linalg.eigh(wide(graph.dense()))
        floor = 10 * graph.numbers * graph.epsilon * values.abs().amax(1, keepdim=True)
        values = values.where(values.abs() > floor, 0)
        parts = [(sign * values).clamp_min(0).sqrt().unsqueeze(1) * vectors for sign in (1, -1)]
        return cls(graph, *parts)

    @property
    def count(self) -> int:  # type: ignore[override]
        """Eigenvalues that are not zero, of either sign."""
        return sum(len(used(part)) for part in (self.positive, self.negative))

    def columns(self) -> Iterator[Signed]:
        """Yield a column for every eigenvalue that is not zero."""
        for sign, part in ((1.0, self.positive), (-1.0, self.negative)):
            for c in used(part):
                yield sign, self.graph.tensors(part[:, :, c])

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield combinations of the columns with normal numbers."""
        for sign, part in ((1.0, self.positive), (-1.0, self.negative)):
            if sign > 0 or used(part):
                vector = torch.einsum("nij,nj->ni", part, normal(part[:, 0], generator))
                yield sign, self.graph.tensors(vector)


def used(x: Tensor) -> list[int]:
    """Return the indices of the last axis at which anything is not zero."""
    found: list[int] = (x != 0).reshape(-1, x.shape[-1]).any(0).nonzero().flatten().tolist()
    return found


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return normal numbers shaped like a tensor, drawn on the generator's device."""
    numbers = torch.randn(like.shape, dtype=like.dtype, device=generator.device, generator=generator)
    return numbers.to(like.device)


def root_of(graph: LossGraph) -> Root:
    """Return the cheapest root of a batch's loss Hessians."""
    found = separate_root(graph) or softmax_root(graph)
    if found is not None:
        return found
    if graph.numbers > DENSE:
        raise Gap(
            f"too_many_outputs: {graph.numbers} output numbers an example, and the loss is neither a softmax "
            f"cross-entropy nor a loss of each number by itself (at most {DENSE} are written out)"
        )
    return DenseRoot.of(graph)


def separate_root(graph: LossGraph) -> SeparateRoot | None:
    """Recognise losses whose Hessian is diagonal by its action on ones and on a random vector."""
    entries = graph.rows(graph.product([torch.ones_like(x) for x in graph.outputs]))
    probe = graph.probe(1)
    true = graph.rows(graph.product(probe))
    error = (true - entries * graph.rows(probe)).norm(dim=1)
    floor = graph.epsilon * true.norm()
    if not bool((error <= graph.tolerance * true.norm(dim=1) + floor).all()):
        return None
    return SeparateRoot(graph, wide(entries))


def softmax_root(graph: LossGraph) -> SoftmaxRoot | None:
    """Recognise cross-entropy along the last axis, or along the second, by its action on random vectors."""
    if len(graph.outputs) > 1:
        return None
    (output,), (layout,) = graph.outputs, graph.layouts
    axes = [axis for axis in dict.fromkeys((output.ndim - 1, 1)) if 0 < axis < output.ndim]
    probes = [graph.probe(seed) for seed in (2, 3)]
    actions = [graph.product(probe) for probe in probes]
    for axis in axes:
        if axis == layout.axis or output.shape[axis] < 2:
            continue

        def positions(x: Tensor, axis: int = axis) -> Tensor:
            return wide(layout.split(x.movedim(axis, -1), graph.examples, 1))

        p = positions(output.detach()).softmax(-1)
        weights = softmax_weights(
            p, [positions(x) for (x,) in probes], [positions(x) for (x,) in actions], graph.tolerance
        )
        if weights is not None:
            return SoftmaxRoot(output, layout, axis, p, weights)
    return None


def softmax_weights(
    p: Tensor, probes: list[Tensor], actions: list[Tensor], tolerance: float
) -> Tensor | None:
    """Return κ of every position [N, T] by least squares, None if the actions are not those of a softmax."""
    spread = [p * u for u in probes]
    expected = [s - p * s.sum(-1, keepdim=True) for s in spread]
    size = torch.stack([e.square().sum(-1) for e in expected]).sum(0)
    scale = torch.stack([s.square().sum(-1) for s in spread]).sum(0)
    match = torch.stack([(a * e).sum(-1) for a, e in zip(actions, expected, strict=True)]).sum(0)
    weights = torch.where(size > 0, match / size, 0)
    # A prediction that is almost certain leaves nothing but cancellation to read the weight from.
    clear = size > torch.finfo(p.dtype).eps * scale
    most = torch.where(clear, weights, 0).max().clamp_min(0)
    weights = weights.clamp(torch.zeros_like(most), most)
    allowed = tolerance * torch.where(clear, weights, most) * scale.sqrt()
    errors = [(a - weights.unsqueeze(-1) * e).norm(dim=-1) for a, e in zip(actions, expected, strict=True)]
    return weights if all(bool((error <= allowed).all()) for error in errors) else None
