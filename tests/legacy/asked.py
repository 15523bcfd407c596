"""Quantities of the facade by name, due at every step."""

from __future__ import annotations

from typing import Any

from cockpit.legacy import quantities
from legacy.training import always

FIRST_ORDER = ("NormTest", "InnerTest", "OrthoTest", "MeanGSNR", "GradHist1d", "GradHist2d", "GradNorm")
SECOND_ORDER = ("HessTrace", "TICDiag", "TICTrace", "HessMaxEV")


def every_quantity(*without: str) -> list[Any]:
    return named(*(name for name in quantities.__all__ if name not in (*without, "Time")))


def named(*names: str) -> list[Any]:
    return [getattr(quantities, name)(always) for name in names]
