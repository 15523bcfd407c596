"""Norm of the mean gradient."""

from dataclasses import dataclass

from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from cockpit.quantities.norms import norms
from cockpit.quantities.quantity import Observation, Quantity, Reading

LENGTH = Length(Known.GRADIENTS)


@dataclass(frozen=True, eq=False)
class GradNorm(Quantity):
    r"""Norm of the mean gradient, $\|g\|_2$, before clipping and without any loss scale; per parameter and in all.

    A parameter that no loss depends on counts as zero.
    """

    needs = (LENGTH,)
    stretches = True

    def compute(self, o: Observation) -> Reading:
        o.insist(LENGTH, "gradients")
        return norms(o, LENGTH)
