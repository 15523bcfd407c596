"""Moments of the individual gradients that several quantities share, by parameter and for the model.

Everything is summed in float64; differences of squares that rounding makes negative are clamped at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cockpit.engine.derived import MeanNorm2, SignalToNoise
from cockpit.engine.statistics import Direction, Norm2, Projection
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Reading
from cockpit.store.record import Numbers

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    r"""$N$, $\sum_n\|g_n\|^2$, $\|g\|^2$ and, where asked for, $\sum_n p_n^2$ with $p_n = g_n^\top g$."""

    examples: int
    norm2_sum: Any
    mean2: Any
    inner2_sum: Any = 0.0

    def check(self) -> None:
        """Raise the `Gap` of a test that is not defined."""
        if self.examples < 2:
            raise Gap("batch_size_1: the variance of one example is not defined")
        if self.mean2 == 0:
            raise Gap("zero_gradient: the mean gradient vanishes")

    @property
    def pairs(self) -> int:
        """$N(N-1)$."""
        return self.examples * (self.examples - 1)


def gradient_test(o: Observation, test: Callable[[Moments], Any], inner: bool) -> Reading:
    """Evaluate a gradient test on the model and on each parameter alone (NaN where it is not defined)."""
    names, whole, each, undefined = o.statistics.once(("moments", inner), lambda: _moments(o, inner))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = test(each) if o.examples > 1 else np.full(len(names), np.nan)
        if undefined.any():
            values = np.where(undefined, np.nan, values)
        whole.check()
        return Reading(float(test(whole)), Numbers(names, values))


def _moments(o: Observation, inner: bool) -> tuple[tuple[str, ...], Moments, Moments, npt.NDArray[np.bool_]]:
    """Return the parameters, the moments of the model and of each of them, and where the mean gradient vanishes."""
    n, table = o.examples, o.statistics
    table.total_exists(Norm2())
    names, norm2 = table.stacked(Norm2())
    _, mean2 = table.stacked(MeanNorm2())
    projected = table.stacked(Projection(Direction.MEAN))[1] if inner else np.zeros((len(names), 1))
    together = projected.sum(0)
    norm2_sums = norm2.sum(1)
    whole = Moments(n, float(norm2_sums.sum()), float(mean2.sum()), float(together @ together))
    each = Moments(n, norm2_sums, mean2, np.einsum("pn,pn->p", projected, projected))
    return names, whole, each, mean2 == 0


def difference(whole: Any, part: Any) -> Any:
    """Return ``whole − part`` of two nearly equal sums, or zero where only rounding would be left."""
    rest = whole - part
    return np.where(rest > 1e-13 * whole, rest, 0.0)


def signal_to_noise(
    o: Observation, epsilon: float, unbiased: bool
) -> tuple[tuple[str, ...], Array, npt.NDArray[np.int64]]:
    r"""Return $\sum_{j\in p} g_j^2/(\sigma_j^2+\varepsilon)$ of every parameter p, and its size."""
    several(o)
    statistic = SignalToNoise(epsilon, unbiased)
    o.statistics.total_exists(statistic)
    names, sums = o.statistics.stacked(statistic)
    return names, sums, np.array([o.statistics.parameters[name].numel() for name in names])


def several(o: Observation) -> None:
    """Insist on more than one example."""
    if o.examples < 2:
        raise Gap("batch_size_1: the variance of one example is not defined")
