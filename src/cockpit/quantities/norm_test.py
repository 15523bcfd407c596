"""The norm test."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.engine.derived import MeanNorm2
from cockpit.engine.statistics import Norm2
from cockpit.quantities.noise import Moments, difference, gradient_test
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class NormTest(Quantity):
    r"""Smallest θ passing the norm test, $\theta^2 = \frac{\sum_n\|g_n - g\|^2}{N(N-1)\|g\|^2}$ (Byrd et al., 2012).

    Above 0.9 the batch is too small for its gradient to be trusted.
    """

    needs = (Norm2(), MeanNorm2())
    stretches = True

    def compute(self, o: Observation) -> Reading:
        return gradient_test(o, norm_test, inner=False)


def norm_test(m: Moments) -> Any:
    """Evaluate the formula."""
    return np.sqrt(difference(m.norm2_sum, m.examples * m.mean2) / (m.pairs * m.mean2))
