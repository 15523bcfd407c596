"""ExampleGradients: one parameter's individual gradients and every way to reduce them.

$g_i = \\nabla \\ell_i$ for the examples $i$ of a micro-batch, never divided by the batch size. The gradients are
held as `Part`s (factors, tables, written-out tensors), one for each use of the parameter; a weight used twice
has two parts and its gradient is their sum, cross terms included. What needs single elements walks them in
blocks of examples that fit into ``BLOCK`` numbers, so nothing of size N x D exists for large parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.parts import Part, Rows

BLOCK = 2**24
"""How many gradient elements are formed at once (128 MiB in float64)."""


@dataclass(frozen=True, eq=False)
class ExampleGradients:
    """The individual gradients of one parameter over the examples of one micro-batch."""

    name: str
    parameter: Tensor
    parts: tuple[Part, ...]

    @property
    def examples(self) -> int:
        """Number of examples N."""
        return self.parts[0].examples

    def spans(self, numbers_per_example: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of blocks of examples that stay within ``BLOCK`` numbers."""
        size = max(1, BLOCK // max(1, numbers_per_example))
        for start in range(0, self.examples, size):
            yield start, min(start + size, self.examples)

    def blocks(self) -> Iterator[Tensor]:
        """Yield the written-out gradients block by block, [n, *shape]."""
        for start, stop in self.spans(self.parameter.numel()):
            yield self.dense(start, stop)

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples, summed over all uses, [n, *shape]."""
        first, *rest = (part.dense(start, stop) for part in self.parts)
        for other in rest:
            first = first + other
        return first

    def dot(self, direction: Tensor) -> Tensor:
        """Return $g_i^\\top v$, [N]; additive over uses."""
        return torch.stack([part.dot(direction) for part in self.parts]).sum(0)

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Return $\\sum_i w_i g_i$; additive over uses, and no $g_i$ is formed."""
        first, *rest = (part.total(weights) for part in self.parts)
        for other in rest:
            first = first + other
        return first

    def norm2(self) -> Tensor:
        """Return $\\|g_i\\|^2$, [N], by the cheapest exact way the parts allow."""
        rows = self._rows()
        if rows is not None:
            sums, example, _ = rows.segments()
            return sums.new_zeros(self.examples).index_add_(0, example, sums.square().sum(1))
        if self._few_uses():
            spans = self.spans(self._numbers_per_example())
            return torch.cat([_ghost_norm2(*self._factors(i, j)) for i, j in spans])
        return torch.cat([g.flatten(1).square().sum(1) for g in self.blocks()])

    def square_sum(self) -> Tensor:
        """Return $\\sum_i g_i \\odot g_i$, shaped like the parameter."""
        rows = self._rows()
        if rows is not None:
            sums, _, row = rows.segments()
            return sums.new_zeros(self.parameter.shape).index_add_(0, row, sums.square())
        probe = self.parts[0].factors(0, 1) if len(self.parts) == 1 else None
        if probe is not None and probe[0].shape[2] == 1:  # one use: the square of a product is a product of squares
            a, b = self._factors(0, self.examples)
            return torch.einsum("ngto,ngti->goi", b.square(), a.square()).reshape(self.parameter.shape)
        total = torch.zeros((), device=self.parameter.device)
        for g in self.blocks():
            total = total + g.square().sum(0)
        return total

    def _rows(self) -> Rows | None:
        """Return all parts as one table access, where every part is one."""
        rows = [part for part in self.parts if isinstance(part, Rows)]
        if len(rows) < len(self.parts):
            return None
        return Rows(torch.cat([r.ids for r in rows], 1), torch.cat([r.b for r in rows], 1), rows[0].shape)

    def _factors(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Stack the factors of all uses along T."""
        pairs = [pair for part in self.parts if (pair := part.factors(start, stop)) is not None]
        return torch.cat([a for a, _ in pairs], 2), torch.cat([b for _, b in pairs], 2)

    def _numbers_per_example(self) -> int:
        """Count what the inner-product way needs for one example: factors and two T x T matrices a group."""
        a, b = self._factors(0, 1)
        return a.numel() + b.numel() + 2 * a.shape[1] * a.shape[2] ** 2

    def _few_uses(self) -> bool:
        """Say whether inner products between uses (T x T) are cheaper than gradients (I x O).

        Work per group and example: $2T^2(I+O)$ against $2TIO$; memory $2T^2$ against $IO$.
        """
        pairs = [part.factors(0, min(1, self.examples)) for part in self.parts]
        if any(pair is None for pair in pairs):
            return False
        inputs, outputs = (x.shape[3] for x in pairs[0] or ())
        uses = sum(pair[0].shape[2] for pair in pairs if pair is not None)
        return uses * (inputs + outputs) <= inputs * outputs


def _ghost_norm2(a: Tensor, b: Tensor) -> Tensor:
    """Return $\\sum_{ts} \\langle a_t, a_s\\rangle \\langle b_t, b_s\\rangle$, [n] (Goodfellow 2015; Li et al. 2022)."""
    if a.shape[2] == 1:
        return (a.square().sum(3) * b.square().sum(3)).sum((1, 2))
    inner = (a @ a.transpose(-1, -2)) * (b @ b.transpose(-1, -2))
    return inner.sum((1, 2, 3)).clamp_min(0)
