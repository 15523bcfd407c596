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
from cockpit.quantities.quantity import Array, Observation, Reading, reading

NORM2, MEAN_NORM2, ALONG_MEAN = Norm2(), MeanNorm2(), Projection(Direction.MEAN)


@dataclass(frozen=True, eq=False)
class Moments:
    r"""$N$, $\sum_n\|g_n\|^2$, $\|g\|^2$ and, where asked for, $\sum_n p_n^2$ with $p_n = g_n^\top g$."""

    examples: int
    norm2_sum: Any
    mean2: Any
    inner2_sum: Any = 0.0

    def check(self) -> None:
        """Raise the `Gap` of a test that is not defined (of a stretch, where it is not at some step)."""
        if self.examples < 2:
            raise Gap("batch_size_1: the variance of one example is not defined")
        if not np.all(self.mean2):
            raise Gap("zero_gradient: the mean gradient vanishes")

    @property
    def pairs(self) -> int:
        """$N(N-1)$."""
        return self.examples * (self.examples - 1)


def gradient_test(o: Observation, test: Callable[[Moments], Any], inner: bool) -> Reading:
    """Evaluate a gradient test on the model and on each parameter alone (NaN where it is not defined)."""
    names, whole, each, undefined = o.statistics.once(("moments", inner), lambda: _moments(o, inner))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = test(each) if o.examples > 1 else np.full(each.mean2.shape, np.nan)
        if undefined is not None:
            values = np.where(undefined, np.nan, values)
        whole.check()
        return reading(test(whole), names, values)


def _moments(
    o: Observation, inner: bool
) -> tuple[tuple[str, ...], Moments, Moments, npt.NDArray[np.bool_] | None]:
    """Return the parameters, the moments of the model and of each of them, and where the mean gradient vanishes."""
    n, table = o.examples, o.statistics
    table.total_exists(NORM2)
    names, norm2 = table.stacked(NORM2)
    _, mean2 = table.stacked(MEAN_NORM2)
    norm2_sums = norm2.sum(-1)
    sums: list[Any] = [0.0, 0.0]
    if inner:
        projected = table.stacked(ALONG_MEAN)[1]
        together = projected.sum(-2)
        sums = [(together * together).sum(-1), (projected * projected).sum(-1)]
    whole = Moments(n, norm2_sums.sum(-1), mean2.sum(-1), sums[0])
    undefined = mean2 == 0
    return names, whole, Moments(n, norm2_sums, mean2, sums[1]), undefined if undefined.any() else None


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
