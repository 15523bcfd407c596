"""The three configurations: ``"economy"``, ``"business"`` and ``"full"``, each containing the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cockpit.legacy import quantities
from cockpit.legacy.quantities.quantity import Quantity
from cockpit.legacy.utils.schedules import linear
from cockpit.naming import snake_case
from cockpit.presets import PRESETS


def quantities_cls_for_configuration(label: str) -> list[type[Quantity]]:
    """Return the quantity classes of a configuration."""
    classes = {snake_case(name): getattr(quantities, name) for name in quantities.__all__}
    return [classes[name] for name in PRESETS[label]]


def configuration(
    label: str, track_schedule: Callable[[int], Any] | None = None, verbose: bool = False
) -> list[Quantity]:
    """Return the quantities of a configuration, all with one schedule (every step by default)."""
    schedule = linear(1) if track_schedule is None else track_schedule
    return [cls(schedule, verbose=verbose) for cls in quantities_cls_for_configuration(label)]
