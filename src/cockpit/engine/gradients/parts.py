"""Parts: what one use of a parameter contributes to its per-example gradients, in its cheapest form.

Axes: N examples, T uses of the parameter within one example (tokens, pixels, time steps), G groups, I inputs,
O outputs. Scale: a part always holds the gradients of the examples' own losses, never divided by N.

Every form answers the same four questions. Two of them are linear in the gradient (`dot`, `total`), so they
add over the uses of a parameter; anything else (norms, squares, histograms) must see the sum over all uses
first and is therefore asked of `ExampleGradients`, which joins parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp

import torch
from torch import Tensor

from cockpit.engine.kernels import Products
from cockpit.engine.numbers.precision import wide
from cockpit.engine.numbers.products import product


class Part(ABC):
    """One use's per-example gradients; rows are examples."""

    examples: int
    shape: torch.Size

    @abstractmethod
    def dense(self, start: int, stop: int) -> Tensor:
        """Return the gradients of examples ``start`` to ``stop``, [n, *shape]."""

    def add_to(self, block: Tensor, start: int, stop: int) -> Tensor:
        """Return a block [n, *shape], which may be overwritten, plus these gradients."""
        return block.add_(self.dense(start, stop))

    @abstractmethod
    def dot(self, direction: Tensor) -> Tensor:
        r"""Return $g_i^\top v$ for every example, [N]."""

    @abstractmethod
    def total(self, weights: Tensor | None = None) -> Tensor:
        r"""Return $\sum_i w_i g_i$ without forming $g_i$; weights default to one."""

    @abstractmethod
    def scaled(self, factor: float) -> Part:
        """Return the same gradients times a factor."""

    @property
    def bytes(self) -> int:
        """Memory that is occupied as long as this part is kept."""
        return sum(t.numel() * t.element_size() for t in vars(self).values() if isinstance(t, Tensor))

    def factors(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        r"""Return (a [n, G, T, I], b [n, G, T, O]) with $g = \sum_t b_t a_t^\top$, or None: no such form."""
        return None

    def sizes(self) -> tuple[int, int, int, int] | None:
        """Return (G, T, I, O) of the factors, or None where no such form exists."""
        return None

    def products(self) -> Iterator[Products]:
        """Yield blocks of examples as factors that a kernel multiplies; nothing where no such form exists."""
        return iter(())


@dataclass(frozen=True, eq=False)
class Dense(Part):
    """Gradients written out, [N, *shape]: for small parameters and for what only the fallback knows.

    They are multiplied by ``factor`` when they are looked at: what is bunched is multiplied all at once.
    """

    written: Tensor
    factor: float = 1.0

    @property
    def gradients(self) -> Tensor:
        """The gradients themselves."""
        return self.written if self.factor == 1 else self._multiplied

    @cached_property
    def _multiplied(self) -> Tensor:
        return self.written * self.factor

    @property
    def examples(self) -> int:  # type: ignore[override]
        """Number of examples."""
        return self.written.shape[0]

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the parameter."""
        return self.written.shape[1:]

    def scaled(self, factor: float) -> Dense:
        """Multiply, later."""
        return Dense(self.written, self.factor * factor)

    def dense(self, start: int, stop: int) -> Tensor:
        """Slice."""
        return self.gradients[start:stop]

    def dot(self, direction: Tensor) -> Tensor:
        """Contract."""
        dots: Tensor = torch.tensordot(self.gradients, direction.to(self.gradients), dims=direction.ndim)
        return dots

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Sum."""
        if weights is None:
            return self.gradients.sum(0)
        total: Tensor = torch.tensordot(weights.to(self.gradients), self.gradients, dims=1)
        return total


_MIXED = "out_dtype" in (torch.bmm.__doc__ or "")
"""Whether products of half precision can be summed and returned in float32."""


ALIGNED = 8
"""Numbers of half precision in rows of whole 16 bytes, from which a GPU multiplies several times as fast."""
WORTH = 2**22
"""Numbers from which rows are copied for that: the outputs of a vocabulary of 50257 words."""


def _of_aligned(a: Tensor, b: Tensor) -> Tensor:
    """Return b @ a [O, I] in float32, of a [T, I] and b [O, T], whose columns are copied to aligned ones."""
    outputs = len(b)
    rows = b.new_empty(b.shape[1], -(-outputs // ALIGNED) * ALIGNED)
    rows[:, :outputs].copy_(b.T)  # what lies beyond them makes rows that are left out
    return torch.bmm(rows.T[None], a[None], out_dtype=torch.float32)[0, :outputs]


@dataclass(frozen=True, eq=False)
class Outer(Part):
    r"""Sums of outer products, $g_i = \sum_t b_{it} a_{it}^\top$ in each of G groups: linear layers.

    ``a`` is [N, G, T, I], ``b`` is [N, G, T, O]; the gradient [G·O, I] is viewed as ``shape``.
    """

    a: Tensor
    b: Tensor
    shape: torch.Size

    @property
    def examples(self) -> int:  # type: ignore[override]
        """Number of examples."""
        return self.a.shape[0]

    def scaled(self, factor: float) -> Outer:
        """Multiply the smaller factor, in a precision in which nothing is rounded."""
        a, b = self.a, self.b
        if frexp(factor)[0] != 0.5:
            a, b = wide(a), wide(b)
        return Outer(a * factor, b, self.shape) if a.numel() < b.numel() else Outer(a, b * factor, self.shape)

    def dense(self, start: int, stop: int) -> Tensor:
        """Return one batched product, summed in float32 at least."""
        a, b = self.a[start:stop], self.b[start:stop].transpose(-1, -2)
        if a.dtype == b.dtype == torch.bfloat16 and a.is_cuda and _MIXED:
            n, groups = a.shape[:2]
            if n == groups == 1 and b.shape[2] % ALIGNED and b.numel() >= WORTH:
                return _of_aligned(a[0, 0], b[0, 0]).reshape(1, *self.shape)
            g = torch.bmm(b.flatten(0, 1), a.flatten(0, 1), out_dtype=torch.float32)
            return (
                g.reshape(n, *self.shape)
                if groups == 1
                else g.unflatten(0, (n, groups)).reshape(n, *self.shape)
            )
        g = product(wide(b), wide(a))
        return g.reshape(len(g), *self.shape)

    def dot(self, direction: Tensor) -> Tensor:
        r"""Return $\sum_t b_t^\top V a_t$."""
        groups, uses, inputs, outputs = self.sizes()
        a, b = wide(self.a), wide(self.b)
        v = direction.reshape(groups, outputs, inputs).to(b)
        if groups == 1:  # one large product instead of many small ones
            a, b, v = a.reshape(-1, inputs), b.reshape(-1, outputs), v[0]
        # The same work either way, but the intermediate is the smaller one.
        products = product(b, v).mul_(a) if inputs <= outputs else product(a, v.transpose(-1, -2)).mul_(b)
        return products.reshape(self.examples, groups * uses * min(inputs, outputs)).sum(1)

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Return one product over examples and uses together."""
        a, b = wide(self.a), wide(self.b)
        b = b if weights is None else b * weights.to(b)[:, None, None, None]
        return torch.einsum("ngto,ngti->goi", b, a).reshape(self.shape)

    def factors(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Slice."""
        return wide(self.a[start:stop]), wide(self.b[start:stop])

    def sizes(self) -> tuple[int, int, int, int]:
        """Read the factors' shapes."""
        _, groups, uses, inputs = self.a.shape
        return groups, uses, inputs, self.b.shape[3]


@dataclass(frozen=True, eq=False)
class Lazy(Part):
    """Outer products whose factors are formed for a block of examples at a time: convolutions.

    ``outer(start, stop)`` builds the factors (an unfolded image is kernel-size times as large as the image,
    so it is never kept); ``block`` says how many examples fit into memory at once.
    """

    outer: Callable[[int, int], Outer]
    examples: int
    shape: torch.Size
    block: int

    def scaled(self, factor: float) -> Lazy:
        """Multiply the factors when they are formed."""
        return replace(self, outer=lambda start, stop: self.outer(start, stop).scaled(factor))

    def _blocks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut a range of examples; one empty block where it is empty."""
        return [(i, min(i + self.block, stop)) for i in range(start, max(stop, start + 1), self.block)]

    def dense(self, start: int, stop: int) -> Tensor:
        """Multiply block by block: factors may be far larger than the gradients."""
        blocks = [self.outer(i, j).dense(0, j - i) for i, j in self._blocks(start, stop)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def dot(self, direction: Tensor) -> Tensor:
        """Contract block by block."""
        return torch.cat([self.outer(i, j).dot(direction) for i, j in self._blocks(0, self.examples)])

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Sum block by block."""
        total: Tensor | None = None
        for i, j in self._blocks(0, self.examples):
            part = self.outer(i, j).total(None if weights is None else weights[i:j])
            total = part if total is None else total + part
        assert total is not None
        return total

    def factors(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the block's factors."""
        return self.outer(start, stop).factors(0, stop - start)

    def sizes(self) -> tuple[int, int, int, int]:
        """Form one example's factors and read their shapes."""
        return self.outer(0, min(1, self.examples)).sizes()


@dataclass(frozen=True, eq=False)
class Rows(Part):
    """Gradients that touch few rows of a table: embeddings. ``ids`` [N, T], ``b`` [N, T, O], shape [V, O]."""

    ids: Tensor
    b: Tensor
    shape: torch.Size

    @property
    def examples(self) -> int:  # type: ignore[override]
        """Number of examples."""
        return self.ids.shape[0]

    def scaled(self, factor: float) -> Rows:
        """Multiply the rows."""
        return Rows(self.ids, self.b * factor, self.shape)

    def dense(self, start: int, stop: int) -> Tensor:
        """Scatter into tables."""
        return self.add_to(self.b.new_zeros(stop - start, *self.shape), start, stop)

    def add_to(self, block: Tensor, start: int, stop: int) -> Tensor:
        """Scatter into tables that hold something already."""
        rows, width = self.shape
        keys = self.ids[start:stop] + rows * torch.arange(stop - start, device=self.ids.device)[:, None]
        table = block.reshape(-1, width)
        table.index_add_(0, keys.flatten(), self.b[start:stop].reshape(-1, width).to(table))
        return table.view_as(block)

    def dot(self, direction: Tensor) -> Tensor:
        """Look the touched rows up and contract."""
        return (direction.to(self.b)[self.ids] * self.b).sum((1, 2))

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Scatter all examples into one table."""
        b = self.b if weights is None else self.b * weights.to(self.b)[:, None, None]
        table = self.b.new_zeros(self.shape)
        return table.index_add_(0, self.ids.flatten(), b.reshape(-1, self.shape[1]))

    def segments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sum what falls on the same row of the same example: (sums [N·T, O], example [N·T], row [N·T]).

        The distinct rows come first; what is left over has zero sums at row 0 of example 0. The length does
        not depend on the ids, so a GPU is not made to wait for them.
        """
        offsets = self.shape[0] * torch.arange(self.examples, device=self.ids.device)[:, None]
        keys, order = (self.ids + offsets).flatten().sort()
        new = torch.ones_like(keys)
        new[1:] = keys[1:] != keys[:-1]
        where = new.cumsum(0) - 1
        b = self.b.reshape(-1, self.shape[1])
        sums = torch.zeros_like(b).index_add_(0, where, b[order])
        distinct = torch.zeros_like(keys).scatter_(0, where, keys)
        return sums, distinct // self.shape[0], distinct % self.shape[0]
