"""Evidence-based early stopping."""

from dataclasses import dataclass

from cockpit.engine.statistics import SquareSum, Total
from cockpit.quantities.noise import signal_to_noise, sum_of
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.quantities.sgd import status_for_sgd


@dataclass(frozen=True, eq=False)
class EarlyStopping(Quantity):
    r"""Early-stopping criterion, $1 - \frac ND\sum_j g_j^2/(s_j^2 + \varepsilon)$ ; stop when positive.

    With the unbiased variance $s^2$. Derived for plain SGD (Mahsereci et al., 2017); for other optimisers the
    value is stored with that remark.
    """

    epsilon: float = 1e-5
    needs = (SquareSum(), Total())

    def compute(self, o: Observation) -> Reading:
        n = o.examples
        sums, sizes = signal_to_noise(o, self.epsilon, unbiased=True)
        each = {name: 1 - n * s / sizes[name] for name, s in sums.items()}
        return Reading(1 - n * sum_of(sums) / sum(sizes.values()), each, status_for_sgd(o))
