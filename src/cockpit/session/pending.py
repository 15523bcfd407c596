"""Pending: a step that is over, whose numbers may still be on their way from the device."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.engine.step import Observed
from cockpit.quantities.quantity import Observation, OptimizerView, Quantity


@dataclass(frozen=True, eq=False)
class Pending:
    """What is needed to record a step once its numbers are there."""

    step: int
    observed: Observed
    view: OptimizerView
    due: list[Quantity]
    waiting: list[Quantity]
    """Quantities of the step before that need this one, too."""
    clock: float

    def observation(self) -> Observation:
        """Return what quantities may look at."""
        o = self.observed
        return Observation(
            self.step,
            o.examples,
            o.table,
            self.view,
            {},
            o.known,
            o.eigenvalues,
            o.methods,
            o.variances,
            self.clock,
        )
