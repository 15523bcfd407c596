"""Trace of the curvature."""

from dataclasses import dataclass

from cockpit.engine.needs import Need
from cockpit.engine.needs import DiagonalVariance
from cockpit.quantities.curvature_choice import CurvatureQuantity, root_sum_square
from cockpit.quantities.noise import sum_of
from cockpit.quantities.quantity import Observation, Reading


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
        errors = self.standard_errors(o)
        more = {"standard_error": root_sum_square(errors)} if errors else {}
        return Reading(sum_of(each), each, self.status(o), more)
