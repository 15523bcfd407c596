r"""ExampleGradients: one parameter's individual gradients and every way to reduce them.

$g_i = \nabla \ell_i$ for the examples $i$ of a micro-batch, never divided by the batch size. The gradients
are held as `Part`s (factors, tables, written-out tensors), one for each use of the parameter; a weight used
twice has two parts and its gradient is their sum, cross terms included. What needs single elements walks them
in blocks of examples that fit into ``BLOCK`` numbers, so nothing of size N x D exists for large parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from cockpit.engine.gradients.parts import Dense, Outer, Part, Rows
from cockpit.engine.numbers.precision import exact_products, wide
from cockpit.engine.numbers.products import product
from cockpit.engine.numbers.sums import square_sum

BLOCK = 2**24
"""How many gradient elements are formed at once (128 MiB in float64)."""
CACHED = 2**19
"""How many on a CPU, where they are looked at again while they are in its cache."""


@dataclass(frozen=True, eq=False)
class ExampleGradients:
    """The individual gradients of one parameter over the examples of one micro-batch."""

    name: str
    parameter: Tensor
    parts: tuple[Part, ...]
    fast: bool = True
    """Whether shortcuts may be taken; without them everything is reduced in the plain way it is defined."""
    _norm2: list[Tensor] = field(default_factory=list, repr=False)
    """The squared norms, where they came with something else."""

    @property
    def examples(self) -> int:
        """Number of examples N."""
        return self.parts[0].examples

    def spans(self, numbers_per_example: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of blocks of examples within ``BLOCK`` numbers; at least one, be it empty."""
        size = max(1, BLOCK // max(1, numbers_per_example))
        for start in range(0, max(1, self.examples), size):
            yield start, min(start + size, self.examples)

    def blocks(self, whole: bool = True) -> Iterator[Tensor]:
        """Yield the written-out gradients in blocks, [n, *shape]; few (``whole``), or such as fit into a cache."""
        numbers = self.parameter.numel()
        if not whole and self.parameter.device.type == "cpu":
            numbers = max(numbers, numbers * BLOCK // CACHED)
        for start, stop in self.spans(numbers):
            yield self.dense(start, stop)

    def factors_of_one_use(self) -> tuple[Tensor, Tensor] | None:
        """Return (a [N, I], b [N, O]) where every gradient is one outer product, else None."""
        found = self._one_use
        return None if found is None else (wide(found[0]), wide(found[1]))

    @cached_property
    def _one_use(self) -> tuple[Tensor, Tensor] | None:
        # Views only: in single precision they would be copies, kept as long as the gradients are.
        if len(self.parts) != 1 or not isinstance(part := self.parts[0], Outer):
            return None
        groups, uses, _, _ = part.sizes()
        return (part.a[:, 0, 0], part.b[:, 0, 0]) if groups == uses == 1 else None

    @cached_property
    def norm2_walks(self) -> bool:
        """Whether norms are had from the written-out gradients only."""
        others = tuple(part for part in self.parts if not isinstance(part, Rows))
        if not others:
            return False
        sizes = _sizes(others)
        return sizes is None or not _few_uses(sizes) or (len(others) < len(self.parts) and sizes[0] > 1)

    @cached_property
    def square_sum_walks(self) -> bool:
        """Whether sums of squares are had from the written-out gradients only."""
        if all(isinstance(part, Rows) for part in self.parts):
            return False
        if len(self.parts) == 1 and isinstance(self.parts[0], Dense):
            return False  # they are written out already
        sizes = _sizes(self.parts)
        return sizes is None or sizes[1] > 1

    def dense(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples, summed over all uses, [n, *shape]."""
        parts = sorted(
            self.parts, key=lambda part: isinstance(part, Dense | Rows)
        )  # products make blocks of their own
        block = parts[0].dense(start, stop)
        if len(parts) > 1 and isinstance(parts[0], Dense):
            block = block.clone()
        for part in parts[1:]:
            block = part.add_to(block, start, stop)
        return block

    def dot(self, direction: Tensor) -> Tensor:
        r"""Return $g_i^\top v$, [N]; additive over uses."""
        first, *rest = (part.dot(direction) for part in self.parts)
        for other in rest:
            first = first + other
        return first

    def total(self, weights: Tensor | None = None) -> Tensor:
        r"""Return $\sum_i w_i g_i$; additive over uses, and no $g_i$ is formed."""
        first, *rest = (part.total(weights) for part in self.parts)
        for other in rest:
            first = first + other
        return first

    def dot_total(self) -> Tensor | None:
        r"""Return $g_i^\top\sum_m g_m$, [N], where that is cheaper than the sum itself; else None.

        With one use, $\sum_m \langle a_i,a_m\rangle\langle b_i,b_m\rangle$: work $2N^2(I+O)$ instead of $4NIO$. The
        norms are on the diagonal, and are kept.
        """
        factors = self.thin_factors()
        if factors is None:
            return None
        a, b = factors
        products = product(a, a.T) * product(b, b.T)
        if a.dtype == torch.float64 or exact_products():
            self._norm2.append(products.diagonal().clone())  # a view would keep all products alive
        return products.sum(1)

    def thin_factors(self) -> tuple[Tensor, Tensor] | None:
        """Return `factors_of_one_use` where they have fewer numbers than the parameter, else None."""
        factors = self.factors_of_one_use() if self.fast else None
        if factors is None:
            return None
        few = self.examples * (factors[0].shape[1] + factors[1].shape[1]) <= self.parameter.numel()
        return factors if few else None

    def norm2(self) -> Tensor:
        r"""Return $\|g_i\|^2$, [N], by the cheapest exact way the parts allow."""
        if self._norm2:
            return self._norm2[0]
        tables = tuple(part for part in self.parts if isinstance(part, Rows))
        others = tuple(part for part in self.parts if not isinstance(part, Rows))
        if not others:
            sums, example, _ = _joined(tables).segments()
            return sums.new_zeros(self.examples).index_add_(0, example, sums.square().sum(1))
        sizes = _sizes(others)
        if self.norm2_walks or sizes is None:
            numbers = self.parameter.numel()  # -1 would be ambiguous where there are no examples
            return torch.cat([g.reshape(len(g), numbers).square().sum(1) for g in self.blocks()])
        if not tables:
            groups, uses, inputs, outputs = sizes
            spans = self.spans(groups * uses * (inputs + outputs + 2 * uses))
            return torch.cat([_ghost_norm2(*_factors(others, i, j)) for i, j in spans])
        looked_up = ExampleGradients(self.name, self.parameter, tables).norm2()
        multiplied = ExampleGradients(self.name, self.parameter, others).norm2()
        return (looked_up + multiplied + 2 * self._cross(_joined(tables), others, sizes)).clamp_min(0)

    def square_sum(self) -> Tensor:
        r"""Return $\sum_i g_i \odot g_i$, shaped like the parameter."""
        tables = tuple(part for part in self.parts if isinstance(part, Rows))
        if len(tables) == len(self.parts):
            sums, _, row = _joined(tables).segments()
            return sums.new_zeros(self.parameter.shape).index_add_(0, row, sums.square())
        if len(self.parts) == 1 and isinstance(part := self.parts[0], Dense):
            found = square_sum(part.written)
            return found if part.factor == 1 else found.mul_(part.factor**2)
        sizes = _sizes(self.parts)
        if self.square_sum_walks or sizes is None:
            return _added(square_sum(g) for g in self.blocks())
        # With one use, the square of a product is a product of squares.
        factors = (_factors(self.parts, i, j) for i, j in self.spans(sizes[0] * (sizes[2] + sizes[3])))
        squares = (_joint(b.square()[:, :, 0], a.square()[:, :, 0]) for a, b in factors)
        return _added(squares).reshape(self.parameter.shape)

    def _cross(self, table: Rows, others: tuple[Part, ...], sizes: tuple[int, int, int, int]) -> Tensor:
        r"""Return $\langle r_i, f_i\rangle$ of a table's and the factors' gradients, [N]: tied embeddings.

        $\sum_{ts} \langle r_t, a_s\rangle\, b_s[\mathrm{id}_t]$: only the rows the table touched are formed.
        """
        _, uses, inputs, outputs = sizes
        touched = table.ids.shape[1]
        products = []
        for i, j in self.spans(uses * (inputs + outputs) + touched * (inputs + 2 * uses)):
            a, b = (x[:, 0] for x in _factors(others, i, j))
            rows = b.gather(2, table.ids[i:j, None].expand(-1, uses, -1))
            products.append((rows * (a @ table.b[i:j].to(a).transpose(1, 2))).sum((1, 2)))
        return torch.cat(products)


def _added(pieces: Iterator[Tensor]) -> Tensor:
    """Add tensors that are no one else's; there is one at least."""
    total = next(pieces)
    for piece in pieces:
        total += piece
    return total


def _joined(tables: tuple[Rows, ...]) -> Rows:
    """Return several accesses to one table as one."""
    ids, b = torch.cat([t.ids for t in tables], 1), torch.cat([t.b for t in tables], 1)
    return Rows(ids, b, tables[0].shape)


def _sizes(parts: tuple[Part, ...]) -> tuple[int, int, int, int] | None:
    """Return (G, T, I, O) of the factors of all uses stacked along T, or None where they do not stack."""
    sizes = [part.sizes() for part in parts]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or len({(g, i, o) for g, _, i, o in known}) > 1:
        return None
    groups, _, inputs, outputs = known[0]
    return groups, sum(uses for _, uses, _, _ in known), inputs, outputs


def _factors(parts: tuple[Part, ...], start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Stack the factors of all uses along T."""
    pairs = [pair for part in parts if (pair := part.factors(start, stop)) is not None]
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([a for a, _ in pairs], 2), torch.cat([b for _, b in pairs], 2)


def _joint(b: Tensor, a: Tensor) -> Tensor:
    """Return the products [G, O, I] of factors [N, G, O] and [N, G, I], summed over the examples."""
    if b.shape[1] == 1:
        return product(b[:, 0].T, a[:, 0])[None]
    return torch.einsum("ngo,ngi->goi", b, a)


def _few_uses(sizes: tuple[int, int, int, int]) -> bool:
    """Say whether inner products between uses (T x T) are cheaper than gradients (I x O).

    Work per group and example: $2T^2(I+O)$ against $2TIO$; memory $2T^2$ against $IO$.
    """
    _, uses, inputs, outputs = sizes
    return uses * (inputs + outputs) <= inputs * outputs


def _ghost_norm2(a: Tensor, b: Tensor) -> Tensor:
    r"""Return $\sum_{ts} \langle a_t, a_s\rangle \langle b_t, b_s\rangle$, [n].

    For one use: Goodfellow, "Efficient per-example gradient computations", 2015. For several: Li et al.,
    "Large language models can be strong differentially private learners", 2022.
    """
    if a.shape[2] == 1:
        norms: Tensor = torch.linalg.vector_norm(a, dim=3) * torch.linalg.vector_norm(b, dim=3)
        return norms.square().sum((1, 2)) if a.shape[1] > 1 else norms.view(-1).square()
    inner = (a @ a.transpose(-1, -2)) * (b @ b.transpose(-1, -2))
    return inner.sum((1, 2, 3)).clamp_min(0)
