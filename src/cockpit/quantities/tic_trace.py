"""Takeuchi information criterion, trace form."""

from dataclasses import dataclass

from cockpit.engine.derived import Trace
from cockpit.engine.needs import CurvatureName, Need
from cockpit.engine.statistics import Norm2
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Observation, Reading, reading


@dataclass(frozen=True, eq=False)
class TICTrace(CurvatureQuantity):
    r"""Takeuchi information criterion from traces, $\frac{\frac1N\sum_n\|g_n\|^2}{\operatorname{Tr}H + \varepsilon}$.

    Thomas et al., 2020.
    """

    curvature: CurvatureName = "diag_ggn_auto"
    epsilon: float = 1e-7

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Norm2(), Trace(self.diagonal))

    def compute(self, o: Observation) -> Reading:
        names, traces = self.stacked(o, Trace(self.diagonal))
        o.statistics.total_exists(Norm2())
        place = {name: k for k, name in enumerate(o.statistics.stacked(Norm2())[0])}
        norm2 = o.statistics.stacked(Norm2())[1].mean(-1)
        total = norm2.sum(-1) / (traces.sum(-1) / o.examples + self.epsilon)
        each = norm2[..., [place[name] for name in names]] / (traces / o.examples + self.epsilon)
        return reading(total, names, each, [self.status(o)])
