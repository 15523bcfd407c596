"""The curvature that traces and TIC are computed with."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

from torch import Tensor

from cockpit.engine.needs import CURVATURES, CurvatureName, Diagonal, DiagonalVariance
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Quantity, check_choice


@dataclass(frozen=True, eq=False)
class CurvatureQuantity(Quantity):
    """A quantity computed from a curvature diagonal.

    ``curvature`` is ``"diag_h"`` (the Hessian; exact where it equals the GGN or the model is small, else an
    estimate with its standard error), ``"diag_ggn_exact"`` or ``"diag_ggn_mc"`` (``samples`` draws).
    """

    curvature: CurvatureName = "diag_h"
    samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "curvature", self.curvature, CURVATURES)

    @property
    def diagonal(self) -> Diagonal:
        """What is asked of the engine."""
        return Diagonal(self.curvature, self.samples if self.curvature == "diag_ggn_mc" else 1)

    def diagonals(self, o: Observation) -> dict[str, Tensor]:
        """Return the diagonal's mean over examples, by parameter."""
        method = o.curvature_method.get(self.diagonal)
        if isinstance(method, Gap):
            raise method
        o.statistics.total_exists(self.diagonal)
        return {n: d.double() / o.examples for n, d in o.statistics.by_parameter(self.diagonal).items()}

    def standard_error(self, o: Observation) -> float:
        """Return the standard error of the whole trace; zero where the diagonal is exact, NaN where unknown."""
        if self.diagonal in o.trace_variance:
            return sqrt(o.trace_variance[self.diagonal]) / o.examples
        return nan if self.status(o) != "ok" else 0.0

    def standard_errors(self, o: Observation) -> dict[str, Tensor]:
        """Return the standard error of each parameter's trace."""
        found = o.statistics.by_parameter(DiagonalVariance(self.diagonal))
        return {n: v.double().clamp_min(0).sqrt() / o.examples for n, v in found.items()}

    def status(self, o: Observation) -> str:
        """Say how the number was obtained, if not exactly."""
        method = o.curvature_method.get(self.diagonal, "")
        return f"estimated: {method}" if method in ("hutchinson", "ggn_mc") else "ok"
