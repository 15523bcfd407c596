"""Evidence-based early stopping."""

from dataclasses import dataclass

from cockpit.engine.derived import SignalToNoise
from cockpit.engine.needs import Need
from cockpit.quantities.noise import signal_to_noise
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.quantities.sgd import status_for_sgd
from cockpit.store.record import Numbers


@dataclass(frozen=True, eq=False)
class EarlyStopping(Quantity):
    r"""Early-stopping criterion, $1 - \frac ND\sum_j g_j^2/(s_j^2 + \varepsilon)$ ; stop when positive.

    With the unbiased variance $s^2$. Derived for plain SGD (Mahsereci et al., 2017); for other optimisers the
    value is stored with that remark.
    """

    epsilon: float = 1e-5

    @property
    def needs(self) -> tuple[Need, ...]:
        return (SignalToNoise(self.epsilon, unbiased=True),)

    def compute(self, o: Observation) -> Reading:
        n = o.examples
        names, sums, sizes = signal_to_noise(o, self.epsilon, unbiased=True)
        each = Numbers(names, 1 - n * sums / sizes)
        return Reading(1 - n * sums.sum() / sizes.sum(), each, status_for_sgd(o))
