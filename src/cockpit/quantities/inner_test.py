"""The inner product test."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.engine.derived import MeanNorm2
from cockpit.engine.statistics import Direction, Norm2, Projection
from cockpit.quantities.noise import Moments, difference, gradient_test
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class InnerTest(Quantity):
    r"""Smallest θ passing the inner product test, $\theta^2 = \frac{\sum_n p_n^2 - N\|g\|^4}{N(N-1)\|g\|^4}$.

    With $p_n = g_n^\top g$. How much individual gradients scatter *along* the mean gradient (Bollapragada et
    al., 2017).
    """

    needs = (Norm2(), MeanNorm2(), Projection(Direction.MEAN))
    stretches = True

    def compute(self, o: Observation) -> Reading:
        return gradient_test(o, inner_test, inner=True)


def inner_test(m: Moments) -> Any:
    """Evaluate the formula."""
    return np.sqrt(difference(m.inner2_sum, m.examples * m.mean2**2) / (m.pairs * m.mean2**2))
