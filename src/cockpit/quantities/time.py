"""Wall-clock time."""

from dataclasses import dataclass

from cockpit.quantities.quantity import Observation, Quantity


@dataclass(frozen=True, eq=False)
class Time(Quantity):
    """Wall-clock time at the end of the step, in seconds since 1970 (no device synchronisation)."""

    unit = "s"

    def compute(self, o: Observation) -> float:
        return o.clock
