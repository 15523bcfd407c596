"""The curvature that traces and TIC are computed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.engine.answers.table import Stacked
from cockpit.engine.needs import CURVATURES, CurvatureName, Diagonal, DiagonalVariance
from cockpit.engine.statistics import Statistic
from cockpit.errors import Gap
from cockpit.quantities.quantity import Observation, Quantity, check_choice


@dataclass(frozen=True, eq=False)
class CurvatureQuantity(Quantity):
    """A quantity computed from a curvature diagonal.

    ``curvature`` is ``"diag_h"`` (the Hessian; exact where it equals the GGN or the model is small, else an
    estimate with its standard error), ``"diag_ggn_exact"`` or ``"diag_ggn_mc"`` (``samples`` draws). With
    ``"diag_h_auto"`` and ``"diag_ggn_auto"`` the GGN is exact where that takes no longer than a training step,
    else estimated by one draw; the status says which.
    """

    curvature: CurvatureName = "diag_h_auto"
    samples: int = 1
    stretches = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(type(self).__name__, "curvature", self.curvature, CURVATURES)

    @property
    def diagonal(self) -> Diagonal:
        """What is asked of the engine."""
        return Diagonal(self.curvature, self.samples if self.curvature == "diag_ggn_mc" else 1)

    def stacked(self, o: Observation, folded: Statistic) -> Stacked:
        """Return numbers folded from the diagonal, or raise the `Gap` that says why there are none."""
        method = o.curvature_method.get(self.diagonal)
        if isinstance(method, Gap):
            raise method
        if not o.examples:
            raise Gap("no_examples: no example of this step counts")
        o.statistics.total_exists(folded)
        return o.statistics.stacked(folded)

    def standard_error(self, o: Observation) -> Any:
        """Return the standard error of the whole trace; zero where the diagonal is exact, None where unknown."""
        if self.diagonal in o.trace_variance:
            return np.sqrt(o.trace_variance[self.diagonal]) / o.examples
        return None if self.status(o) != "ok" else 0.0

    def standard_errors(self, o: Observation) -> Stacked:
        """Return the standard error of each parameter's trace."""
        names, variances = o.statistics.stacked(DiagonalVariance(self.diagonal))
        return names, np.sqrt(np.maximum(variances, 0)) / o.examples

    def status(self, o: Observation) -> str:
        """Say how the number was obtained, if not exactly."""
        method = o.curvature_method.get(self.diagonal, "")
        return f"estimated: {method}" if method in ("hutchinson", "ggn_mc", "hessian=ggn_mc") else "ok"
