"""The orthogonality test."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.engine.derived import MeanNorm2
from cockpit.engine.statistics import Direction, Norm2, Projection
from cockpit.quantities.noise import Moments, difference, gradient_test
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class OrthoTest(Quantity):
    r"""Least ν passing the orthogonality test, $\nu^2 = \frac{\sum_n\|g_n\|^2 - \sum_n p_n^2/\|g\|^2}{N(N-1)\|g\|^2}$.

    How much individual gradients scatter *across* the mean gradient (Bollapragada et al., 2017).
    """

    needs = (Norm2(), MeanNorm2(), Projection(Direction.MEAN))
    stretches = True

    def compute(self, o: Observation) -> Reading:
        return gradient_test(o, ortho_test, inner=True)


def ortho_test(m: Moments) -> Any:
    """Evaluate the formula."""
    return np.sqrt(difference(m.norm2_sum, m.inner2_sum / m.mean2) / (m.pairs * m.mean2))
