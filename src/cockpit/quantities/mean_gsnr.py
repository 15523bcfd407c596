"""Gradient signal-to-noise ratio."""

from dataclasses import dataclass

from cockpit.engine.statistics import SquareSum, Total
from cockpit.quantities.noise import signal_to_noise, sum_of
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class MeanGSNR(Quantity):
    r"""Mean gradient signal-to-noise ratio, $\frac1D\sum_j g_j^2/(\sigma_j^2 + \varepsilon)$ (Liu et al., 2020).

    $\sigma^2$ is the biased variance. With gradients below about 1e-3 the default ε dominates the variance;
    choose a smaller one then.
    """

    epsilon: float = 1e-5
    needs = (SquareSum(), Total())

    def compute(self, o: Observation) -> Reading:
        sums, sizes = signal_to_noise(o, self.epsilon, unbiased=False)
        return Reading(sum_of(sums) / sum(sizes.values()), {n: s / sizes[n] for n, s in sums.items()})
