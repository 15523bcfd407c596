"""Trace of the curvature."""

from dataclasses import dataclass

import numpy as np

from cockpit.engine.derived import Trace
from cockpit.engine.needs import DiagonalVariance, Need
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Further, Observation, Reading, reading


@dataclass(frozen=True, eq=False)
class HessTrace(CurvatureQuantity):
    r"""Trace of the Hessian of the mean loss, $\operatorname{Tr} H = \sum_j H_{jj}$, per parameter and in all.

    ``hess_trace.standard_error`` is stored with it: zero where the value is exact, none where one draw was made.
    """

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Trace(self.diagonal), DiagonalVariance(self.diagonal))

    def compute(self, o: Observation) -> Reading:
        names, traces = self.stacked(o, Trace(self.diagonal))
        each, status = traces / o.examples, self.status(o)
        total, error = each.sum(-1), self.standard_error(o)
        if error is None:  # a single draw does not tell its error
            return reading(total, names, each, [status])
        found = Further(error + np.zeros_like(total), *(self.standard_errors(o) if status != "ok" else ()))
        return reading(total, names, each, [status], standard_error=found)
