"""Gradient noise: the tests, the signal-to-noise ratio, and what follows for batch size and stopping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from cockpit.legacy.context import get_optimizer
from cockpit.legacy.quantities.measured import MeasuredNow
from cockpit.legacy.quantities.quantity import Params
from cockpit.legacy.utils.optim import ComputeStep
from cockpit.quantities import cabs, early_stopping, inner_test, mean_gsnr, norm_test, ortho_test


class NormTest(MeasuredNow):
    """Norm test radius."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, norm_test.NormTest())


class InnerTest(MeasuredNow):
    """Inner product test band width."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, inner_test.InnerTest())


class OrthoTest(MeasuredNow):
    """Orthogonality test band width."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, ortho_test.OrthoTest())


class MeanGSNR(MeasuredNow):
    """Mean signal-to-noise ratio of the gradient."""

    def __init__(
        self, track_schedule: Callable[[int], Any], verbose: bool = False, epsilon: float = 1e-5
    ) -> None:
        super().__init__(track_schedule, verbose, mean_gsnr.MeanGSNR(epsilon))
        self._epsilon = epsilon


class _ForSGD(MeasuredNow):
    """A criterion that is defined for SGD without momentum only."""

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        if not ComputeStep.is_sgd_default_kwargs(get_optimizer(global_step)):
            raise ValueError("This criterion only supports zero-momentum SGD.")
        return super()._compute(global_step, params, batch_loss)


class CABS(_ForSGD):
    """Batch size suggested by the coupled adaptive batch size criterion."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, cabs.CABS())

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        value = super()._compute(global_step, params, batch_loss)
        rates = {group["lr"] for group in get_optimizer(global_step).param_groups}
        if len(rates) != 1:
            raise ValueError(f"Found non-unique learning rates {rates}")
        return value


class EarlyStopping(_ForSGD):
    """Evidence-based early-stopping criterion; stop when it is positive."""

    def __init__(
        self, track_schedule: Callable[[int], Any], verbose: bool = False, epsilon: float = 1e-5
    ) -> None:
        super().__init__(track_schedule, verbose, early_stopping.EarlyStopping(epsilon))
        self._epsilon = epsilon
