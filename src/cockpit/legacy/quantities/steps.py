"""The step taken: its length along the fitted parabola, its size, and the distance from the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cockpit.legacy.quantities.measured import MeasuredLater, PerTensor, per_tensor
from cockpit.quantities import alpha, distance, update_size
from cockpit.quantities.quantity import Reading


class Alpha(MeasuredLater):
    """Noise-aware step length; the integer −1 where the fitted parabola has no minimum."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, alpha.Alpha())

    def _stored(self, reading: Reading, names: Sequence[str]) -> float | None:
        if reading.status.startswith("concave"):
            return -1
        value = float(reading.value)  # type: ignore[arg-type]
        return value if math.isfinite(value) else None


class UpdateSize(MeasuredLater):
    """Norm of the update, for each parameter."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, update_size.UpdateSize())

    def _stored(self, reading: Reading, names: Sequence[str]) -> list[float]:
        return per_tensor(reading, names)


class Distance(PerTensor):
    """Distance from the parameters at the first step that was seen, for each parameter."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose, distance.Distance())
