r"""Roots of the loss Hessians: vectors whose outer products add up to $\Lambda_n$, all at once or on average.

$\Lambda_n = \sum_c \pm s_{nc} s_{nc}^\top$ makes the diagonal of $J_n^\top \Lambda_n J_n$ the signed sum of
$(J_n^\top s_{nc})^2$; one random vector with $\mathbb{E}[v_n v_n^\top] = \Lambda_n$ estimates it. Softmax
cross-entropy and losses that act on every output number by itself (squared errors, binary cross-entropy) are
recognised by their action on random vectors, whoever wrote them; they need no matrix and draw the textbook's
samples: labels from the model's own prediction, and random signs, whose squares do not vary as normal numbers' do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cockpit.engine.curvature.loss_graph import LossGraph, unsplit
from cockpit.engine.native import negated, softmax_columns
from cockpit.engine.numbers.precision import wide

COLUMNS = 16
"""How many columns are handed out together."""

Signed = tuple[float, tuple[Tensor, ...]]
"""A sign and K vectors s_n of all examples, [K, *shape] for every output that takes part in the losses."""


class Root(ABC):
    """A root of all loss Hessians of a batch; ``count`` is how many columns it has at most."""

    graph: LossGraph
    count: int

    @abstractmethod
    def columns(self) -> Iterator[Signed]:
        """Yield columns, several at a time, whose signed outer products add up to the loss Hessians."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield one random vector (two for an indefinite loss) whose outer product is right on average."""


@dataclass(frozen=True, eq=False)
class SoftmaxRoot(Root):
    r"""Cross-entropy at every position: $\Lambda = \kappa\,(\mathrm{diag}(p) - pp^\top)$, of rank C - 1.

    Columns are those of its Cholesky factor, from the last class up: with $q_c = \sum_{j \le c} p_j$, column c is
    zero below its diagonal entry $-\sqrt{p_c q_{c-1} / q_c}$ and $p_j \sqrt{p_c / (q_c q_{c-1})}$ above (Tanabe and
    Sagae, 1992). A draw is $\sqrt\kappa\,(p - e_{\hat y})$ with labels $\hat y \sim p$, independent over the T
    positions of an example.
    """

    graph: LossGraph
    axis: int
    probabilities: Tensor
    """[N, T, C]"""
    weights: Tensor
    """κ, [N, T]"""

    @property
    def count(self) -> int:  # type: ignore[override]
        """T·(C-1)."""
        _, positions, classes = self.probabilities.shape
        return positions * (classes - 1)

    def columns(self) -> Iterator[Signed]:
        """Yield a column for every class but the first, of every position that counts."""
        positions, classes = self.probabilities.shape[1:]
        for t in used(self.weights) if positions > 1 else [0]:
            for start in range(0, classes - 1, COLUMNS):
                entries = self._entries(t, slice(start, min(start + COLUMNS, classes - 1)))
                columns = entries.unsqueeze(2)  # [K, N, 1, C]
                if positions > 1:
                    columns = torch.zeros_like(columns).repeat(1, 1, positions, 1)
                    columns[:, :, t] = entries
                yield 1.0, self._shaped(columns)

    def _entries(self, t: int, c: slice) -> Tensor:
        """Return some columns of one position, [K, N, C]."""
        p, weights = self.probabilities[:, t], self.weights[:, t]
        if (found := softmax_columns(p, weights, c)) is not None:
            return found
        heads, roots = self._heads
        share = (p[:, 1:] / heads[:, t, 1:] * weights[:, None]).sqrt()[:, c]
        entries = ((share / roots[:, t, c]).unsqueeze(2) * p[:, None]).tril(c.start)
        entries.diagonal(c.start + 1, 1, 2).addcmul_(share, roots[:, t, c], value=-1)
        return entries.transpose(0, 1)

    @cached_property
    def _heads(self) -> tuple[Tensor, Tensor]:
        """The sums q of all classes, and the roots of all but the last."""
        p = self.probabilities
        heads = p.cumsum(2).clamp_min(torch.finfo(p.dtype).tiny)  # zero only if all of it is
        return heads, heads[..., :-1].sqrt()

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield the gradient for labels that the model draws itself."""
        p = self.probabilities
        share = torch.rand(*p.shape[:2], 1, dtype=p.dtype, device=generator.device, generator=generator)
        reached = p.cumsum(2).contiguous()
        labels = torch.searchsorted(reached, share.to(p.device) * reached[..., -1:])
        weights = self.weights.sqrt().unsqueeze(2)
        vector = (p * weights).scatter_add_(2, labels.clamp_max_(p.shape[2] - 1), -weights)
        yield 1.0, self._shaped(vector[None])

    def _shaped(self, rows: Tensor) -> tuple[Tensor]:
        (output,), (layout,) = self.graph.outputs, self.graph.layouts
        if self.axis == output.ndim - 1:
            return (unsplit(rows, output, layout, self.graph.examples).to(output.dtype),)
        found = unsplit(rows, output.movedim(self.axis, -1), layout, self.graph.examples)
        return (found.movedim(-1, 1 + self.axis).to(output.dtype),)


@dataclass(frozen=True, eq=False)
class SeparateRoot(Root):
    r"""A loss of each number by itself: $\Lambda = \mathrm{diag}(c)$; a draw is $\sqrt{c} \odot \pm 1$."""

    graph: LossGraph
    entries: Tensor
    """c, [N, C]"""
    convex: bool = False
    """Whether no entry is negative, as far as is known without looking."""

    @property
    def count(self) -> int:  # type: ignore[override]
        """C."""
        return self.entries.shape[1]

    def columns(self) -> Iterator[Signed]:
        """Yield a column for every output number."""
        for sign, part in self._parts():
            places = list(range(self.count)) if self.convex else used(part)
            for start in range(0, len(places), COLUMNS):
                chosen = places[start : start + COLUMNS]
                columns = part.new_zeros(len(chosen), *part.shape)
                for k, c in enumerate(chosen):
                    columns[k, :, c] = part[:, c]
                yield sign, self.graph.stacked(columns)

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield weights of random signs."""
        for sign, part in self._parts():
            yield sign, self.graph.stacked(signed(part, generator)[None])

    def _parts(self) -> list[tuple[float, Tensor]]:
        if self.convex or not bool((self.entries < 0).any()):
            return [(1.0, self.entries.clamp_min(0).sqrt())]
        return [(sign, (sign * self.entries).clamp_min(0).sqrt()) for sign in (1.0, -1.0)]


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
            places = used(part)
            for start in range(0, len(places), COLUMNS):
                chosen = part[:, :, places[start : start + COLUMNS]]
                yield sign, self.graph.stacked(chosen.movedim(2, 0))

    def draw(self, generator: torch.Generator) -> Iterator[Signed]:
        """Yield combinations of the columns with random signs."""
        for sign, part in ((1.0, self.positive), (-1.0, self.negative)):
            if sign > 0 or used(part):
                vector = torch.einsum("nij,nj->ni", part, signed(torch.ones_like(part[:, 0]), generator))
                yield sign, self.graph.stacked(vector[None])


def used(x: Tensor) -> list[int]:
    """Return the indices of the last axis at which anything is not zero."""
    found: list[int] = (x != 0).reshape(-1, x.shape[-1]).any(0).nonzero().flatten().tolist()
    return found


def signed(sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers of these sizes (none negative) with random signs, drawn on the generator's device."""
    if generator.device.type != "cpu" or not sizes.is_cpu:
        numbers = torch.randn(sizes.shape, dtype=sizes.dtype, device=generator.device, generator=generator)
        return torch.copysign(sizes, numbers.to(sizes.device))
    # On a CPU one bit for each, since to draw a number takes longer than to use it.
    bits = torch.empty(-(-sizes.numel() // 64), dtype=torch.int64).random_(
        -(2**63), None, generator=generator
    )
    sizes = sizes.contiguous()
    if (found := negated(sizes, bits)) is not None:
        return found
    picked = (bits[:, None] >> torch.arange(64)) & 1
    return torch.where(picked.flatten()[: sizes.numel()].view(sizes.shape) == 1, -sizes, sizes)
