"""Gradient signal-to-noise ratio."""

from dataclasses import dataclass

from cockpit.engine.derived import SignalToNoise
from cockpit.engine.needs import Need
from cockpit.quantities.noise import signal_to_noise
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.store.record import Numbers


@dataclass(frozen=True, eq=False)
class MeanGSNR(Quantity):
    r"""Mean gradient signal-to-noise ratio, $\frac1D\sum_j g_j^2/(\sigma_j^2 + \varepsilon)$ (Liu et al., 2020).

    $\sigma^2$ is the biased variance. With gradients below about 1e-3 the default ε dominates the variance;
    choose a smaller one then.
    """

    epsilon: float = 1e-5

    @property
    def needs(self) -> tuple[Need, ...]:
        return (SignalToNoise(self.epsilon, unbiased=False),)

    def compute(self, o: Observation) -> Reading:
        names, sums, sizes = signal_to_noise(o, self.epsilon, unbiased=False)
        return Reading(sums.sum() / sizes.sum(), Numbers(names, sums / sizes))
