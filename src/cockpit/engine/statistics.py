"""The catalogue of statistics: what can be asked of individual gradients, and how answers are joined.

A statistic is a frozen value; equal requests are one request. It declares two monoids: how answers join where
*examples* are split (micro-batches, data-parallel ranks) and where *parameters* are split (layers). That is all
the engine needs to know to accumulate and to run on many processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.numbers.sums import square_sum


class Join(Enum):
    """How two answers become one."""

    SUM = "sum"
    MAX = "max"
    CAT = "cat"
    NEVER = "never"
    """Meaningful for one part only."""


class Direction(Enum):
    """A direction in parameter space to project individual gradients on."""

    MEAN = "mean"
    """The mean gradient of the whole step: known when its last micro-batch is done."""
    UPDATE = "update"
    """The step the optimiser is about to take: known when it has stepped."""
    LAST_UPDATE = "last_update"
    """The step the optimiser took before: known from the start."""


class Statistic:
    """A reduction of one parameter's individual gradients.

    (No ABC, and a hash that is computed once: statistics are looked up some hundred times in a step.)
    """

    over_examples: ClassVar[Join]
    over_parameters: ClassVar[Join]
    individual: ClassVar[bool] = True
    """Whether it rests on the gradients of single examples, and not on their sum alone."""
    keeps: ClassVar[bool] = False
    """Whether it keeps individual gradients beyond the step, which a recording of the step would overwrite."""
    small: ClassVar[bool] = True
    """Whether there are few numbers of a parameter, so that they are brought to the host with the others."""

    def __init_subclass__(cls) -> None:
        cls.__hash__ = Statistic.__hash__  # type: ignore[method-assign]  # which dataclasses then leave alone

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((type(self), *self.__dict__.values()))
        return known

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the statistic of one parameter over the examples at hand."""
        raise NotImplementedError

    def walks(self, g: ExampleGradients) -> bool:
        """Say whether `reduce` would have to write the gradients out."""
        return False

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor | None:
        """Return the statistic of some examples' gradients [n, D], written out; None: this is no way to it.

        Blocks join like micro-batches do.
        """
        return None


class Elementwise(Statistic):
    """A statistic that must see single elements."""

    def walks(self, g: ExampleGradients) -> bool:
        """Say yes."""
        return True

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return the statistic of some examples' gradients."""
        raise NotImplementedError

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Join the blocks."""
        size = g.parameter.numel()
        return joined(self.over_examples, [self.of_block(b.reshape(len(b), size), g) for b in g.blocks()])


def joined(join: Join, values: list[Tensor]) -> Tensor:
    """Join answers of several parts into one."""
    if len(values) == 1:
        return values[0]
    if join is Join.CAT:
        return torch.cat(values)
    stacked = torch.stack([v.to(values[0].device) for v in values])
    return stacked.amax(0) if join is Join.MAX else stacked.sum(0)


@dataclass(frozen=True)
class Norm2(Statistic):
    r"""$\|g_i\|^2$ for every example."""

    over_examples = Join.CAT
    over_parameters = Join.SUM

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [N]."""
        return g.norm2()

    def walks(self, g: ExampleGradients) -> bool:
        """Say whether the factors offer nothing cheaper."""
        return g.norm2_walks

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return [n]."""
        return block.square().sum(1)


@dataclass(frozen=True)
class Total(Statistic):
    r"""$\sum_i g_i$, shaped like the parameter."""

    over_examples = Join.SUM
    over_parameters = Join.NEVER
    small = False

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the parameter's shape."""
        return g.total()


@dataclass(frozen=True)
class SquareSum(Statistic):
    r"""$\sum_i g_i \odot g_i$, shaped like the parameter."""

    over_examples = Join.SUM
    over_parameters = Join.NEVER
    small = False

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the parameter's shape."""
        return g.square_sum()

    def walks(self, g: ExampleGradients) -> bool:
        """Say whether several uses add up before they are squared."""
        return g.square_sum_walks

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return the parameter's shape."""
        return square_sum(block).view(g.parameter.shape)


@dataclass(frozen=True)
class Projection(Statistic):
    r"""$g_i^\top v$ for every example, along a `Direction` that the engine knows sooner or later."""

    direction: Direction
    over_examples = Join.CAT
    over_parameters = Join.SUM

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Project on the mean of the examples at hand, which is the mean of the step if there are no others."""
        assert self.direction is Direction.MEAN
        return g.dot(g.total() / g.examples)


@dataclass(frozen=True)
class AbsMax(Elementwise):
    r"""$\max_{ij} |g_{ij}|$ over finite elements."""

    over_examples = Join.MAX
    over_parameters = Join.MAX

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return a number."""
        return torch.where(block.isfinite(), block.abs(), 0).amax() if block.numel() else block.new_zeros(())


@dataclass(frozen=True)
class Quantiles(Elementwise):
    """Lower and upper quantile of all elements, as a pair (−low, high) that joins by its maximum."""

    share: float
    over_examples = Join.MAX
    over_parameters = Join.MAX

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return [2]: the widest over blocks (the exact quantile where one block holds all elements)."""
        x = block[block.isfinite()].double()
        if not x.numel():
            return x.new_zeros(2)
        k = min(x.numel() - 1, int(self.share * x.numel()))
        return torch.stack([-x.kthvalue(k + 1).values, x.kthvalue(x.numel() - k).values])
