r"""Sums of squared individual gradients over several columns of output gradients, for one parameter.

A linear layer or a convolution with K columns of output gradients is one with K times as many outputs: the
columns share the inputs (and the patches of a convolution), and where a weight is used once an example, the
squares are summed over columns before they meet the inputs: $\sum_n (\sum_k \delta_{nk}^2)\,(a_n^2)^\top$, one
product instead of K. Other layers' formulas are applied column by column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cockpit.engine import kernels
from cockpit.engine.coverage.coverage import parts_of
from cockpit.engine.gradients.individual import BLOCK, ExampleGradients
from cockpit.engine.gradients.parts import Dense, Lazy, Outer, Part, Rows
from cockpit.engine.gradients.reduction import reductions
from cockpit.engine.layers.conv import convolution
from cockpit.engine.layers.formula import Layout
from cockpit.engine.layers.linear import linear
from cockpit.engine.numbers.precision import wide
from cockpit.engine.numbers.products import product
from cockpit.engine.numbers.sums import square_sum
from cockpit.engine.seeing.use import Use
from cockpit.engine.statistics import SquareSum

FEW = 2**15
"""So many squares of a bias are summed at once on a CPU, whether or not its weight needs them by themselves."""
CACHED = 2**20
"""How many gradient elements a CPU forms at once (4 MiB in float32): what stays in its cache is squared there."""


@dataclass(frozen=True, eq=False)
class Columns:
    """One call of a layer with K gradients [K, *shape] for each of its outputs."""

    use: Use
    grads: tuple[Tensor | None, ...]
    examples: int
    layouts: tuple[Layout, ...]
    _widened: dict[str, Part] = field(default_factory=dict)
    _single: list[tuple[str, Part]] = field(default_factory=list)
    _squares: list[Tensor] = field(default_factory=list)
    """Of a layer used once an example: those of its output gradients, summed over columns, and of its inputs.

    Where several layers are looked at together, also the first's sum over the examples.
    """

    @property
    def count(self) -> int:
        """K."""
        return next(len(g) for g in self.grads if g is not None)

    @property
    def groups(self) -> int:
        """Groups of outputs that share inputs."""
        groups = getattr(self.use.module, "groups", 1)
        assert isinstance(groups, int)
        return groups

    @property
    def widens(self) -> bool:
        """Whether K columns can stand for K times as many outputs."""
        return self.use.formula.parts in (linear, convolution)

    @property
    def once(self) -> bool:
        """Whether this is a linear layer used once an example."""
        shape = tuple(self.use.shapes[0])
        return self.use.formula.parts is linear and len(shape) == 2 and shape[0] == self.examples

    def squares(self) -> tuple[Tensor, Tensor]:
        r"""Return $\sum_k \delta_{nk}^2$, [N, O], and $a_n^2$, [N, I], of a layer used once an example."""
        if not self._squares:
            grad, a = self.factors()
            self._squares.extend((square_sum(grad), a.square()))
        return self._squares[0], self._squares[1]

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return the output gradients [K, N, O] and inputs [N, I] of a layer used once an example."""
        (grad,) = self.grads
        assert grad is not None
        grad = wide(grad)
        return grad, self.use.call((), self.examples, ()).input.to(grad.dtype)

    def widened(self, names: Mapping[int, str]) -> dict[str, Part]:
        """Return the parts of a layer whose outputs are, in each group, those of all columns."""
        if not self._widened:
            (grad,) = self.grads
            assert grad is not None
            grad = self._joined(self._precise(grad))
            found = parts_of(self.use, (grad,), self.examples, self.layouts, names)
            self._widened.update(found)
        return self._widened

    def _precise(self, grad: Tensor) -> Tensor:
        """Return gradients in a precision to be summed in; a linear layer's products are, whatever their factors."""
        half = grad.dtype is torch.bfloat16 and isinstance(self.use.module, nn.Linear)
        return grad if half else wide(grad)

    def _joined(self, grad: Tensor) -> Tensor:
        """Return the gradients of all columns as those of one call with as many times the outputs."""
        if len(grad) == 1:
            return grad[0]
        space = 0 if isinstance(self.use.module, nn.Linear) else grad.ndim - 1 - _channel_axis(self.use)
        grouped: Tensor = grad.unflatten(grad.ndim - 1 - space, (self.groups, -1)).movedim(0, -2 - space)
        return grouped.flatten(-3 - space, -1 - space)

    def single(self, column: int, names: Mapping[int, str]) -> list[tuple[str, Part]]:
        """Return the parts of one column (kept for the layer's other parameters if there are no more columns)."""
        if self._single:
            return self._single
        grads = tuple(None if g is None else self._precise(g[column]) for g in self.grads)
        found = list(parts_of(self.use, grads, self.examples, self.layouts, names))
        if self.count == 1:
            self._single.extend(found)
        return found

    def alone(self, name: str, names: Mapping[int, str]) -> Part | None:
        """Return the part of a parameter of this call, of the only column; None if there is not one."""
        found = self.widened(names).items() if self.widens else self.single(0, names)
        parts = [part for owner, part in found if owner == name]
        return parts[0] if len(parts) == 1 else None


def _channel_axis(use: Use) -> int:
    """Return the axis of a convolution's channels, counted with the columns in front."""
    kernel = use.module.kernel_size
    assert isinstance(kernel, tuple)
    return len(use.shapes[0]) - len(kernel)


def square_together(calls: Sequence[Columns]) -> None:
    """Square the factors of all layers used once an example, for where launches are what counts: in two of them.

    Two more sum the squares of their output gradients, which are those of their biases.
    """
    once = list({id(call): call for call in calls if call.once}.values())
    if not once:
        return
    pairs = [call.factors() for call in once]
    grads, inputs = (list(torch._foreach_mul(x, x)) for x in zip(*pairs, strict=True))
    for call, grad, a in zip(once, grads, inputs, strict=True):
        call._squares.extend((grad[0] if len(grad) == 1 else grad.sum(0), a))
    biased = [call for call in once if call.use.module.bias is not None]
    squares = [call._squares[0] for call in biased]
    if len(squares) > 2 and len({(x.device, x.dtype) for x in squares}) == 1:
        sums = torch.cat(squares, 1).sum(0).split([x.shape[1] for x in squares])
        for call, total in zip(biased, sums, strict=True):
            call._squares.append(total)


def column_sum(name: str, p: Tensor, calls: list[Columns], names: Mapping[int, str]) -> Tensor | None:
    """Return the sum over columns and examples of the squared gradients of a parameter, summed over its calls."""
    first = calls[0]
    if len(calls) == 1 and first.once:
        if (
            p.ndim == 1
            and p.device.type == "cpu"
            and len(grad := first.factors()[0].flatten(0, 1)) * len(p) <= FEW
        ):
            return square_sum(grad)
        b, a = first.squares()
        if p.ndim > 1:
            return product(b.T, a)
        return first._squares[2] if len(first._squares) > 2 else b.sum(0)
    if all(call.widens and call.use.formula is first.use.formula for call in calls):
        parts = [call.widened(names)[name] for call in calls if name in call.widened(names)]
        if all(isinstance(part, Dense) for part in parts):
            return _of_dense(parts, first, p)
        if first.count == len(parts) == 1 and isinstance(parts[0], Lazy) and kernels.runs_on(p):
            return of_parts(name, p, (parts[0],))  # by the kernel that forms no patches
        return _of_factors(parts, first, p)
    total: Tensor | None = None
    for k in range(first.count):
        found = tuple(part for call in calls for owner, part in call.single(k, names) if owner == name)
        if found:
            value = of_parts(name, p, found)
            total = value if total is None else total + value
    return total


def of_parts(name: str, p: Tensor, parts: tuple[Part, ...]) -> Tensor:
    """Return the sum of squares of one column; what looks rows of a table up is added to what multiplies with it."""
    tables = [part for part in parts if isinstance(part, Rows)]
    others = tuple(part for part in parts if isinstance(part, Outer | Lazy))
    if not tables or not others or len(tables) + len(others) < len(parts):
        g = ExampleGradients(name, p, parts)
        return dict(reductions(g, [SquareSum()], {}))[SquareSum()]
    ids, rows = torch.cat([t.ids for t in tables], 1), torch.cat([t.b for t in tables], 1)
    multiplied, total, width = ExampleGradients(name, p, others), None, p.shape[1]
    for start, stop in multiplied.spans(p.numel()):
        block = multiplied.dense(start, stop)  # written for us alone
        places = ids[start:stop] + len(p) * torch.arange(stop - start, device=ids.device)[:, None]
        looked_up = rows[start:stop].reshape(-1, width).to(block.dtype)
        block.view(-1, width).index_add_(0, places.flatten(), looked_up)
        total = _with_squares(total, block)
    assert total is not None
    return total


def _of_dense(parts: list[Part], call: Columns, p: Tensor) -> Tensor:
    written = sum((part.dense(0, part.examples) for part in parts[1:]), parts[0].dense(0, call.examples))
    by_column = written.view(len(written), call.groups, call.count, -1)
    return by_column.square().sum((0, 2)).reshape(p.shape)


def _of_factors(parts: list[Part], call: Columns, p: Tensor) -> Tensor:
    sizes = [size for part in parts if (size := part.sizes()) is not None]
    uses = sum(size[1] for size in sizes)
    groups, _, inputs, outputs = sizes[0]
    formed = 0 if uses == 1 else outputs * inputs
    limit = CACHED if p.device.type == "cpu" and uses > 1 else BLOCK
    step = max(1, limit // max(1, groups * (uses * (inputs + outputs) + formed)))
    total: Tensor | None = None
    for start in range(0, call.examples, step):
        if uses > 1 and len(parts) == call.count == 1 and isinstance(parts[0], Outer):
            total = _with_squares(total, parts[0].dense(start, min(start + step, call.examples)))
            continue
        pairs = [f for part in parts if (f := part.factors(start, min(start + step, call.examples)))]
        a, b = (torch.cat(x, 2) if len(x) > 1 else x[0] for x in zip(*pairs, strict=True))
        if uses == 1:  # the square of a product is a product of squares
            squares = b.square().unflatten(3, (call.count, -1)).sum(3)
            value = squares.squeeze(2).permute(1, 2, 0) @ a.square().squeeze(2).transpose(0, 1)
            total = value if total is None else total.add_(value)
            continue
        total = _with_squares(total, product(b.transpose(-1, -2), a))
    assert total is not None
    if uses > 1 and call.count > 1:
        total = total.view(groups, call.count, -1, inputs).sum(1)
    return total.reshape(p.shape)


def _with_squares(total: Tensor | None, x: Tensor) -> Tensor:
    """Add the sum of squares over the first axis to a total."""
    if total is None:
        return square_sum(x)
    return total.addcmul_(x[0], x[0]) if len(x) == 1 else total.add_(square_sum(x))
