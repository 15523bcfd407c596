"""What an ordinary backward pass leaves behind: loss, time, parameters, and the norm of the gradient."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from cockpit.legacy.quantities.measured import PerTensor
from cockpit.legacy.quantities.quantity import ByproductQuantity, Params
from cockpit.quantities import grad_norm


class Loss(ByproductQuantity):
    """The mini-batch loss, as it was handed in."""

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> float:
        return float(batch_loss.detach())


class Time(ByproductQuantity):
    """Wall-clock time in seconds since 1970."""

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> float:
        return time.time()


class Parameters(ByproductQuantity):
    """The parameters themselves, as nested lists."""

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> list[Any]:
        return [p.detach().tolist() for p in params]


class GradNorm(PerTensor):
    """Norm of the gradient, for each parameter."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, grad_norm.GradNorm())
