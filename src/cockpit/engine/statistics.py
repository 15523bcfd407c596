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

from cockpit.engine.binning import Counter, bin_index, edges
from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.parts import wide


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
        dtype, device = wide(g.parameter).dtype, g.parameter.device
        counter = Counter(edges(self.bins, self.low, self.high, device), dtype)
        for block in g.blocks():
            counter.add(block.reshape(len(block), g.parameter.numel()).to(dtype))
        return counter.result()


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
        theta = wide(g.parameter.detach()).flatten()
        place = bin_index(theta, edges(columns, *self.parameter_range, theta.device))
        place = torch.where((place == columns) | theta.isneginf(), 0, place.clamp_max(columns - 1)).to(
            torch.int32
        )
        known = ~theta.isnan()  # a parameter that is NaN has no place
        all_known = bool(known.all())
        counter = Counter(edges(rows, *self.gradient_range, theta.device), theta.dtype, columns)
        for block in g.blocks():
            values = block.reshape(len(block), g.parameter.numel()).to(theta.dtype)
            if all_known:
                counter.add(values, place)
            else:
                counter.nan += int((~known).sum()) * len(values)
                counter.add(values[:, known], place[known])
        return counter.result()
