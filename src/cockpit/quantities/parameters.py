"""The parameters themselves."""

from dataclasses import dataclass

from cockpit.engine.needs import Known
from cockpit.quantities.quantity import Observation, Quantity, Reading


@dataclass(frozen=True, eq=False)
class Parameters(Quantity):
    r"""The parameters $\theta_t$ before the step, whole; for tiny models, or rarely."""

    needs = (Known.PARAMETERS,)

    def compute(self, o: Observation) -> Reading:
        return Reading(by_parameter=dict(o[Known.PARAMETERS]))
