"""Size of the step taken."""

from dataclasses import dataclass

from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from cockpit.quantities.norms import norms
from cockpit.quantities.quantity import Observation, Quantity, Reading

LENGTH = Length(Known.UPDATES)


@dataclass(frozen=True, eq=False)
class UpdateSize(Quantity):
    r"""Size of the step the optimiser took, $\|\theta_{t+1} - \theta_t\|_2$, per parameter and in all."""

    needs = (LENGTH,)
    stretches = True

    def compute(self, o: Observation) -> Reading:
        o.insist(LENGTH, "updates")
        return norms(o, LENGTH)
