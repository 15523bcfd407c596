"""Histograms of all elements of individual gradients, alone or jointly with the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.kernels import available
from cockpit.engine.kernels.rows import prepared
from cockpit.engine.numbers.binning import Grid, edges
from cockpit.engine.numbers.counting import count, count_outer, places
from cockpit.engine.numbers.precision import wide
from cockpit.engine.statistics import Elementwise, Join, Statistic

_PLACES: WeakKeyDictionary[ExampleGradients, dict[Statistic, Tensor | None]] = WeakKeyDictionary()
"""Columns of the elements of gradients that are looked at block by block."""


class Histogram(Elementwise):
    """Integer counts of all elements, with everything outside counted apart.

    Where the gradients are outer products of one use, they are counted without being written out.
    """

    over_examples = Join.SUM
    over_parameters = Join.SUM

    @property
    def grid(self) -> Grid:
        """The bins."""
        raise NotImplementedError

    def constants(self, device: torch.device) -> list[object]:
        """Return what counting looks up, for a recording that must keep it alive."""
        grid = self.grid
        return [prepared(grid, double, device) for double in (False, True)] if available() else []

    def columns(self, g: ExampleGradients) -> Tensor | None:
        """Return the column of every element of the parameter, [D] int32; −1 where it has none."""
        return None

    def walks(self, g: ExampleGradients) -> bool:
        """Say whether there are no factors to count from."""
        return g.factors_of_one_use() is None

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return [bins · columns + EXTRA] int64."""
        place = _PLACES.setdefault(g, {})
        if self not in place:
            place[self] = self.columns(g)
        return count(wide(block), self.grid, place[self], g.fast)

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Return [bins · columns + EXTRA] int64."""
        factors = g.factors_of_one_use() if g.fast else None
        if factors is not None:
            return count_outer(*factors, self.grid, self.columns(g), g.fast)
        return super().reduce(g)


@dataclass(frozen=True)
class Histogram1d(Histogram):
    """Counts of all elements $g_{ij}$ in uniform bins, int64, with everything outside counted apart."""

    bins: int
    low: float
    high: float

    @property
    def grid(self) -> Grid:
        """The bins."""
        return Grid(self.bins, self.low, self.high)


@dataclass(frozen=True)
class Histogram2d(Histogram):
    r"""Joint counts of $(g_{ij}, \theta_j)$, int64; gradients outside are counted apart, parameters clamped."""

    bins: tuple[int, int]
    gradient_range: tuple[float, float]
    parameter_range: tuple[float, float]

    @property
    def grid(self) -> Grid:
        """The bins of the gradient; the parameter's are columns."""
        return Grid(self.bins[0], *self.gradient_range, columns=self.bins[1])

    def constants(self, device: torch.device) -> list[object]:
        """Return also the parameter's bins."""
        return [*super().constants(device), edges(self.bins[1], *self.parameter_range, device)]

    def columns(self, g: ExampleGradients) -> Tensor:
        """Return each parameter's bin; one that is NaN has none."""
        theta = wide(g.parameter.detach()).flatten()
        return places(theta, Grid(self.bins[1], *self.parameter_range), g.fast)
