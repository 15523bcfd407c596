"""The mini-batch loss."""

from dataclasses import dataclass

from cockpit.engine.needs import Known
from cockpit.quantities.quantity import Observation, Quantity, Reading, reading


@dataclass(frozen=True, eq=False)
class Loss(Quantity):
    r"""Mean loss of the step's examples, $L = \frac1N \sum_n \ell_n(\theta_t)$."""

    needs = (Known.LOSSES,)
    stretches = True

    def compute(self, o: Observation) -> Reading:
        losses = o.losses.numpy()
        return reading(losses.sum(-1) / max(1, losses.shape[-1]))
