"""Coupled adaptive batch size."""

from dataclasses import dataclass

from cockpit.engine.needs import Known
from cockpit.engine.statistics import Norm2, Total
from cockpit.errors import Gap
from cockpit.quantities.noise import several
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.quantities.sgd import status_for_sgd


@dataclass(frozen=True, eq=False)
class CABS(Quantity):
    r"""Suggested batch size, $\frac1L\sum_k \eta_k \sum_{j\in k}\sigma_j^2$ over parameter groups k.

    Coupled adaptive batch size (Balles et al., 2017). Derived for plain SGD; for other optimisers the value
    is stored with that remark.
    """

    needs = (Norm2(), Total(), Known.LOSSES)
    unit = "examples"

    def compute(self, o: Observation) -> Reading:
        several(o)
        loss, n = float(o.losses.mean()), o.examples
        if not loss > 0:
            raise Gap(f"loss_not_positive: the criterion divides by the loss, which is {loss:.3g}")
        o.statistics.total(Norm2())
        norm2, total = o.statistics.by_parameter(Norm2()), o.statistics.by_parameter(Total())
        each = {}
        for name, value in norm2.items():
            mean2 = float((total[name].double() / n).square().sum())
            variance = max(0.0, float(value.double().sum()) / n - mean2)
            each[name] = o.optimizer.learning_rate.get(name, 0.0) * variance / loss
        return Reading(sum(each.values()), each, status_for_sgd(o))
