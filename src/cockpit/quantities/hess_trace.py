"""Trace of the curvature."""

from dataclasses import dataclass
from math import isnan

from cockpit.engine.derived import Trace
from cockpit.engine.needs import DiagonalVariance, Need
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.quantity import Number, Observation, Reading
from cockpit.store.record import Numbers


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
        error = self.standard_error(o)
        if isnan(error):  # a single draw does not tell its error
            return Reading(each.sum(), Numbers(names, each), status)
        errors: dict[str, Number] = {"": error, **(self.standard_errors(o) if status != "ok" else {})}
        return Reading(each.sum(), Numbers(names, each), status, {"standard_error": errors})
