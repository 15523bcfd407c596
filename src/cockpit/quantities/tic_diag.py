"""Takeuchi information criterion, diagonal form."""

from dataclasses import dataclass

import numpy as np

from cockpit.engine.derived import Takeuchi
from cockpit.engine.needs import CurvatureName, Need
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Observation, Reading, reading

ILL_CONDITIONED = "ill_conditioned: 1 % or more of the sum comes from curvature near or below zero"


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
        size = max(1, sum(o.statistics.parameters[name].numel() for name in names))
        total, doubtful, negative = np.moveaxis(sums.sum(-2), -1, 0)
        status = np.array(self.status(o))
        if status == "ok":
            status = np.where((doubtful >= 0.01 * abs(total)) & (total != 0), ILL_CONDITIONED, status)
        said = np.ravel(status).tolist()
        return reading(total, names, sums[..., 0], said, share_negative=negative / size)
