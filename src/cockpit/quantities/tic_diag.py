"""Takeuchi information criterion, diagonal form."""

from dataclasses import dataclass

from cockpit.engine.derived import Takeuchi
from cockpit.engine.needs import CurvatureName, Need
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Observation, Reading
from cockpit.store.record import Numbers


@dataclass(frozen=True, eq=False)
class TICDiag(CurvatureQuantity):
    r"""Takeuchi information criterion from diagonals, $\sum_j \frac{\frac1N\sum_n g_{nj}^2}{h_j + \varepsilon}$.

    Estimates the generalisation gap at a local minimum (Thomas et al., 2020). Where 1 % of the sum comes from
    curvature that is negative or below 10 ε, the status says ``ill_conditioned``.
    """

    curvature: CurvatureName = "diag_ggn_auto"
    epsilon: float = 1e-7

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Takeuchi(self.diagonal, self.epsilon),)

    def compute(self, o: Observation) -> Reading:
        names, sums = self.stacked(o, Takeuchi(self.diagonal, self.epsilon))
        each, size = Numbers(names, sums[:, 0]), sum(o.statistics.parameters[name].numel() for name in names)
        (total, doubtful, negative), status = sums.sum(0).tolist(), self.status(o)
        if status == "ok" and doubtful >= 0.01 * abs(total) > 0:
            status = "ill_conditioned: 1 % or more of the sum comes from curvature near or below zero"
        return Reading(total, each, status, {"share_negative": negative / max(1, size)})
