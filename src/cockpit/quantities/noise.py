"""Moments of the individual gradients that several quantities share, by parameter and for the model.

Everything is summed in float64; differences of squares that rounding makes negative are clamped at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.statistics import Direction, Norm2, Projection, SquareSum, Total
from cockpit.errors import Gap
from cockpit.quantities.quantity import Number, Observation, Reading


@dataclass(frozen=True, eq=False)
class Moments:
    r"""$N$, $\sum_n\|g_n\|^2$, $\|g\|^2$ and, where asked for, $\sum_n p_n^2$ with $p_n = g_n^\top g$."""

    examples: int
    norm2_sum: float
    mean2: float
    inner2_sum: float = 0.0

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


def gradient_test(o: Observation, test: Callable[[Moments], float], inner: bool) -> Reading:
    """Evaluate a gradient test on the model and on each parameter alone."""
    n = o.examples
    norm2 = o.statistics.by_parameter(Norm2())
    total = o.statistics.by_parameter(Total())
    projected = o.statistics.by_parameter(Projection(Direction.MEAN)) if inner else {}

    # One transfer from the device for each kind of number, not for each parameter.
    names = [name for name in norm2 if not inner or name in projected]
    norm2_sums = _numbers([norm2[name].double().sum() for name in names])
    mean2s = _numbers(
        [torch.linalg.vector_norm(total[name], dtype=torch.float64) / n for name in names], power=2
    )
    inner2s = (
        _numbers([projected[name].double().square().sum() for name in names]) if inner else [0.0] * len(names)
    )
    each: dict[str, Number] = {
        name: _tested(test, Moments(n, *found))
        for name, *found in zip(names, norm2_sums, mean2s, inner2s, strict=True)
    }
    inner2 = float(o.statistics.total(Projection(Direction.MEAN)).double().square().sum()) if inner else 0.0
    whole = Moments(n, float(o.statistics.total(Norm2()).double().sum()), sum(mean2s), inner2)
    whole.check()
    return Reading(test(whole), each)


def _numbers(values: list[Tensor], power: int = 1) -> list[float]:
    if not values:
        return []
    found: list[float] = torch.stack([v.to(values[0].device) for v in values]).pow(power).tolist()
    return found


def _tested(test: Callable[[Moments], float], moments: Moments) -> float:
    try:
        moments.check()
    except Gap:
        return float("nan")
    return test(moments)


def difference(whole: float, part: float) -> float:
    """Return ``whole − part`` of two nearly equal sums, or zero where only rounding would be left."""
    rest = whole - part
    return rest if rest > 1e-13 * whole else 0.0


def variances(square_sum: Tensor, total: Tensor, n: int) -> tuple[Tensor, Tensor]:
    r"""Return the mean gradient $g$ and the biased variance $\sigma^2 = \frac1N\sum_n g_n^2 - g^2$, elementwise."""
    mean = total.double() / n
    return mean, (square_sum.double() / n - mean.square()).clamp_min(0)


def signal_to_noise(
    o: Observation, epsilon: float, unbiased: bool
) -> tuple[dict[str, Tensor], dict[str, int]]:
    r"""Return $\sum_{j\in p} g_j^2/(\sigma_j^2+\varepsilon)$ of every parameter p, and its size."""
    several(o)
    o.statistics.total_exists(SquareSum())
    squares, totals = o.statistics.by_parameter(SquareSum()), o.statistics.by_parameter(Total())
    factor = o.examples / (o.examples - 1) if unbiased else 1.0
    sums, sizes = {}, {}
    for name in squares:
        mean, variance = variances(squares[name], totals[name], o.examples)
        sums[name] = (mean.square() / (factor * variance + epsilon)).sum()
        sizes[name] = mean.numel()
    return sums, sizes


def several(o: Observation) -> None:
    """Insist on more than one example."""
    if o.examples < 2:
        raise Gap("batch_size_1: the variance of one example is not defined")


def sum_of(values: dict[str, Tensor]) -> Tensor:
    """Add one number per parameter."""
    return torch.stack(list(values.values())).sum()
