"""Takeuchi information criterion, trace form."""

from dataclasses import dataclass

from cockpit.engine.needs import CurvatureName, Need
from cockpit.engine.statistics import Norm2
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Observation, Reading


@dataclass(frozen=True, eq=False)
class TICTrace(CurvatureQuantity):
    r"""Takeuchi information criterion from traces, $\frac{\frac1N\sum_n\|g_n\|^2}{\operatorname{Tr}H + \varepsilon}$.

    Thomas et al., 2020.
    """

    curvature: CurvatureName = "diag_ggn_exact"
    epsilon: float = 1e-7

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Norm2(), self.diagonal)

    def compute(self, o: Observation) -> Reading:
        traces = {name: float(h.sum()) for name, h in self.diagonals(o).items()}
        norm2 = {n: float(v.double().mean()) for n, v in o.statistics.by_parameter(Norm2()).items()}
        each = {name: norm2[name] / (trace + self.epsilon) for name, trace in traces.items() if name in norm2}
        total = float(o.statistics.total(Norm2()).double().mean())
        return Reading(total / (sum(traces.values()) + self.epsilon), each, self.status(o))
