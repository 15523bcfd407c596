"""Policies by which a histogram's range follows the data; a new range holds from the next histogram on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cockpit.quantities import bins
from cockpit.schedule import Schedule, every

NEVER = ~every(1)


def from_zero(track_schedule: Callable[[int], Any]) -> Schedule:
    """Return the schedule, asked about steps 0, 1, … only."""
    return every(1) & track_schedule


class NoAdaptation(bins.NoAdaptation):
    """Leave the range as it is."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(NEVER)


class GradAbsMax(bins.GradAbsMax):
    r"""Range $\pm(1+\text{padding})\,\max_{nj}|g_{nj}|$, at least ``min_size`` wide."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        padding: float = 0.0,
        min_size: float = 1e-6,
    ) -> None:
        super().__init__(from_zero(track_schedule), padding, min_size)


class ParamAbsMax(bins.ParamAbsMax):
    r"""Range $\pm(1+\text{padding})\,\max_j|\theta_j|$, at least ``min_size`` wide."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        padding: float = 0.0,
        min_size: float = 1e-6,
    ) -> None:
        super().__init__(from_zero(track_schedule), padding, min_size)
