"""Takeuchi information criterion, diagonal form."""

from dataclasses import dataclass

from cockpit.engine.needs import CurvatureName, Need
from cockpit.engine.statistics import SquareSum
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.noise import sum_of
from cockpit.quantities.quantity import Observation, Reading


@dataclass(frozen=True, eq=False)
class TICDiag(CurvatureQuantity):
    r"""Takeuchi information criterion from diagonals, $\sum_j \frac{\frac1N\sum_n g_{nj}^2}{h_j + \varepsilon}$.

    Estimates the generalisation gap at a local minimum (Thomas et al., 2020). Where 1 % of the sum comes from
    curvature that is negative or below 10 ε, the status says ``ill_conditioned``.
    """

    curvature: CurvatureName = "diag_ggn_exact"
    epsilon: float = 1e-7

    @property
    def needs(self) -> tuple[Need, ...]:
        return (SquareSum(), self.diagonal)

    def compute(self, o: Observation) -> Reading:
        o.statistics.total_exists(SquareSum())
        diagonals, squares = self.diagonals(o), o.statistics.by_parameter(SquareSum())
        each, doubtful, negative, size = {}, 0.0, 0, 0
        for name, h in diagonals.items():
            terms = squares[name].double() / o.examples / (h + self.epsilon)
            weak = (h < 0) | (h.abs() < 10 * self.epsilon)
            each[name] = terms.sum()
            doubtful += float(terms[weak].abs().sum())
            negative, size = negative + int((h < 0).sum()), size + h.numel()
        total, status = float(sum_of(each)), self.status(o)
        if status == "ok" and doubtful >= 0.01 * abs(total) > 0:
            status = "ill_conditioned: 1 % or more of the sum comes from curvature near or below zero"
        return Reading(total, each, status, {"share_negative": negative / max(1, size)})
