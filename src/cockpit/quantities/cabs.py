"""Coupled adaptive batch size."""

from dataclasses import dataclass

import numpy as np

from cockpit.engine.derived import MeanNorm2
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Norm2
from cockpit.errors import Gap
from cockpit.quantities.noise import several
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.quantities.sgd import status_for_sgd
from cockpit.store.record import Numbers


@dataclass(frozen=True, eq=False)
class CABS(Quantity):
    r"""Suggested batch size, $\frac1L\sum_k \eta_k \sum_{j\in k}\sigma_j^2$ over parameter groups k.

    Coupled adaptive batch size (Balles et al., 2017). Derived for plain SGD; for other optimisers the value
    is stored with that remark.
    """

    needs = (Norm2(), MeanNorm2(), Known.LOSSES)
    unit = "examples"

    def compute(self, o: Observation) -> Reading:
        several(o)
        loss, n = float(o.losses.mean()), o.examples
        if not loss > 0:
            raise Gap(f"loss_not_positive: the criterion divides by the loss, which is {loss:.3g}")
        o.statistics.total_exists(Norm2())
        names, norm2 = o.statistics.stacked(Norm2())
        variance = np.maximum(0.0, norm2.sum(1) / n - o.statistics.stacked(MeanNorm2())[1])
        rates = np.array([o.optimizer.learning_rate.get(name, 0.0) for name in names])
        each = rates * variance / loss
        return Reading(each.sum(), Numbers(names, each), status_for_sgd(o))
