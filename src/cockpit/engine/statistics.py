"""The catalogue of statistics: what can be asked of individual gradients, and how answers are joined.

A statistic is a frozen value; equal requests are one request. It declares two monoids: how answers join where
*examples* are split (micro-batches, data-parallel ranks) and where *parameters* are split (layers). That is all
the engine needs to know to accumulate and to run on many processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from cockpit.engine.gradients import ExampleGradients


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


class Statistic(ABC):
    """A reduction of one parameter's individual gradients."""

    over_examples: ClassVar[Join]
    over_parameters: ClassVar[Join]

    @abstractmethod
    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the statistic of one parameter over the examples at hand."""


@dataclass(frozen=True)
class Norm2(Statistic):
    r"""$\|g_i\|^2$ for every example."""

    over_examples = Join.CAT
    over_parameters = Join.SUM

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [N]."""
        return g.norm2()


@dataclass(frozen=True)
class Total(Statistic):
    r"""$\sum_i g_i$, shaped like the parameter."""

    over_examples = Join.SUM
    over_parameters = Join.NEVER

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the parameter's shape."""
        return g.total()


@dataclass(frozen=True)
class SquareSum(Statistic):
    r"""$\sum_i g_i \odot g_i$, shaped like the parameter."""

    over_examples = Join.SUM
    over_parameters = Join.NEVER

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return the parameter's shape."""
        return g.square_sum()


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
class AbsMax(Statistic):
    r"""$\max_{ij} |g_{ij}|$ over finite elements."""

    over_examples = Join.MAX
    over_parameters = Join.MAX

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return a number."""
        blocks = [torch.where(b.isfinite(), b.abs(), 0).amax() for b in g.blocks() if b.numel()]
        return torch.stack(blocks).amax() if blocks else torch.zeros((), device=g.parameter.device)


@dataclass(frozen=True)
class Quantiles(Statistic):
    """Lower and upper quantile of all elements, as a pair (−low, high) that joins by its maximum."""

    share: float
    over_examples = Join.MAX
    over_parameters = Join.MAX

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [2]: the widest over blocks (the exact quantile where one block holds all elements)."""
        pairs = []
        for block in g.blocks():
            x = block[block.isfinite()].double()
            if x.numel():
                k = min(x.numel() - 1, int(self.share * x.numel()))
                pairs.append(torch.stack([-x.kthvalue(k + 1).values, x.kthvalue(x.numel() - k).values]))
        return torch.stack(pairs).amax(0) if pairs else torch.zeros(2, device=g.parameter.device)


EXTRA = 4
"""Counters behind the bins: underflow, overflow, NaN, infinite."""


def edges(bins: int, low: float, high: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the bin edges as the comparisons see them: rounded to the dtype of the values."""
    return torch.linspace(low, high, bins + 1, dtype=torch.float64).to(dtype).to(device)


def bin_index(x: Tensor, edge: Tensor) -> Tensor:
    """Return each value's bin 0…bins−1, or bins (under), bins+1 (over), bins+2 (NaN), bins+3 (infinite).

    An affine guess corrected by the edges themselves, so a value on an edge falls where the edges say.
    """
    bins = len(edge) - 1
    low, high = edge[0], edge[-1]
    guess = torch.nan_to_num((x - low) * (bins / (high - low))).clamp(0, bins - 1).long()
    guess -= (x < edge[guess]).long()
    guess += ((x >= edge[1:][guess.clamp_min(0)]) & (guess >= 0)).long()
    index = guess.clamp(0, bins - 1)
    index = torch.where(x < low, bins, torch.where(x > high, bins + 1, index))
    return torch.where(x.isnan(), bins + 2, torch.where(x.isinf(), bins + 3, index))


@dataclass(frozen=True)
class Histogram1d(Statistic):
    """Counts of all elements $g_{ij}$ in uniform bins, int64, with everything outside counted apart."""

    bins: int
    low: float
    high: float
    over_examples = Join.SUM
    over_parameters = Join.SUM

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [bins + EXTRA] int64."""
        counts = torch.zeros(self.bins + EXTRA, dtype=torch.int64, device=g.parameter.device)
        for block in g.blocks():
            edge = edges(self.bins, self.low, self.high, block.dtype, block.device)
            counts += torch.bincount(bin_index(block.flatten(), edge), minlength=self.bins + EXTRA)
        return counts


@dataclass(frozen=True)
class Histogram2d(Statistic):
    r"""Joint counts of $(g_{ij}, \theta_j)$, int64; gradients outside are counted apart, parameters clamped."""

    bins: tuple[int, int]
    gradient_range: tuple[float, float]
    parameter_range: tuple[float, float]
    over_examples = Join.SUM
    over_parameters = Join.SUM

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [bins_0 · bins_1 + EXTRA] int64."""
        rows, columns = self.bins
        counts = torch.zeros(rows * columns + EXTRA, dtype=torch.int64, device=g.parameter.device)
        for block in g.blocks():
            theta = g.parameter.detach().to(block.dtype).flatten()
            column = bin_index(theta, edges(columns, *self.parameter_range, block.dtype, block.device))
            column = torch.where(column == columns, 0, column)
            column = torch.where((column == columns + 1) | (column == columns + 3), columns - 1, column)
            row = bin_index(
                block.reshape(len(block), -1), edges(rows, *self.gradient_range, block.dtype, block.device)
            )
            outside = row - rows + rows * columns  # where under, over, NaN, infinite are counted
            outside = torch.where((column == columns + 2) & (row < rows), rows * columns + 2, outside)
            inside = (row < rows) & (column < columns)
            index = torch.where(inside, row * columns + column, outside)
            counts += torch.bincount(index.flatten(), minlength=rows * columns + EXTRA)
        return counts
