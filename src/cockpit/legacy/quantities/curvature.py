"""Curvature: trace and largest eigenvalue of the Hessian, and the Takeuchi information criterion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cockpit.engine.needs import CurvatureName
from cockpit.legacy.quantities.measured import MeasuredNow, PerTensor
from cockpit.quantities import hess_max_ev, hess_trace, tic_diag, tic_trace


class HessMaxEV(MeasuredNow):
    """Largest eigenvalue of the Hessian. ``use_power`` is accepted; both of its methods are one here."""

    def __init__(
        self, track_schedule: Callable[[int], Any], verbose: bool = False, use_power: bool = True
    ) -> None:
        super().__init__(track_schedule, verbose, hess_max_ev.HessMaxEV(tolerance=1e-3))


class HessTrace(PerTensor):
    """Trace of the Hessian, for each parameter."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        curvature: CurvatureName = "diag_h",
    ) -> None:
        super().__init__(track_schedule, verbose, hess_trace.HessTrace(curvature))
        self._curvature = curvature


class TICDiag(MeasuredNow):
    """Takeuchi information criterion from diagonals."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        curvature: CurvatureName = "diag_h",
        epsilon: float = 1e-7,
    ) -> None:
        super().__init__(track_schedule, verbose, tic_diag.TICDiag(curvature, epsilon=epsilon))
        self._curvature, self._epsilon = curvature, epsilon


class TICTrace(MeasuredNow):
    """Takeuchi information criterion from traces."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        curvature: CurvatureName = "diag_h",
        epsilon: float = 1e-7,
    ) -> None:
        super().__init__(track_schedule, verbose, tic_trace.TICTrace(curvature, epsilon=epsilon))
        self._curvature, self._epsilon = curvature, epsilon
