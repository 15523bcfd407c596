"""Trace of the curvature."""

from dataclasses import dataclass

from cockpit.engine.needs import DiagonalVariance, Need
from cockpit.quantities.curvature_choice import CurvatureQuantity
from cockpit.quantities.noise import sum_of
from cockpit.quantities.quantity import Number, Observation, Reading


@dataclass(frozen=True, eq=False)
class HessTrace(CurvatureQuantity):
    r"""Trace of the Hessian of the mean loss, $\operatorname{Tr} H = \sum_j H_{jj}$, per parameter and in all.

    ``hess_trace.standard_error`` is stored with it: zero where the value is exact.
    """

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.diagonal, DiagonalVariance(self.diagonal))

    def compute(self, o: Observation) -> Reading:
        each = {name: d.sum() for name, d in self.diagonals(o).items()}
        status = self.status(o)
        errors: dict[str, Number] = {
            "": self.standard_error(o),
            **(self.standard_errors(o) if status != "ok" else {}),
        }
        return Reading(sum_of(each), each, status, {"standard_error": errors})
