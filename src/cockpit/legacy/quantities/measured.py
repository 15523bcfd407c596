"""Built-in quantities: the original's names, settings and formats around cockpit's own numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from cockpit.legacy import context
from cockpit.legacy.quantities.quantity import Params, Quantity, SingleStepQuantity, TwoStepQuantity
from cockpit.quantities.quantity import Memory, Reading
from cockpit.quantities.quantity import Quantity as Source


class Measured(Quantity):
    """A quantity whose values are the readings of one of cockpit's own, its ``source``."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool, source: Source) -> None:
        super().__init__(track_schedule, verbose)
        self.source, self.memory = source, Memory()
        self.said: set[str] = set()
        self._started = False

    def start(self, parameters: Mapping[str, Tensor]) -> None:
        """Look at the parameters once, before the first step."""
        if not self._started:
            self._started = True
            self.source.start(parameters, self.memory)

    def due(self, global_step: int) -> bool:
        """Say whether a step must be measured."""
        return self._scheduled(global_step)

    def extensions(self, global_step: int) -> list[Any]:
        """Return none: BackPACK is not needed."""
        return []

    def _scheduled(self, global_step: int) -> bool:
        return global_step >= 0 and bool(self._track_schedule(global_step))

    def _read(self, global_step: int) -> Any:
        frame = context.frame(global_step)
        reading = frame.readings.get(id(self))
        return None if reading is None else self._stored(reading, frame.names)

    def _stored(self, reading: Reading, names: Sequence[str]) -> Any:
        """Return a reading in the original's format."""
        return float(reading.value)  # type: ignore[arg-type]


class MeasuredNow(Measured, SingleStepQuantity):
    """Known when the step's backward pass is over."""

    def should_compute(self, global_step: int) -> bool:
        """Ask the schedule."""
        return self._scheduled(global_step)

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        return self._read(global_step)


class MeasuredLater(Measured, TwoStepQuantity):
    """Known one step later, because it looks at the step taken."""

    SAVE_SHIFT = 1

    def is_start(self, global_step: int) -> bool:
        """Say whether a step is tracked."""
        return self._scheduled(global_step)

    def is_end(self, global_step: int) -> bool:
        """Say whether the step before is tracked."""
        return self._scheduled(global_step - self.SAVE_SHIFT)

    def _compute_start(self, global_step: int, params: Params, batch_loss: Tensor) -> None:
        """Do nothing: the engine keeps what is needed."""

    def _compute_end(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        return self._read(global_step)


class PerTensor(MeasuredNow):
    """A list with one number for each parameter; one that took no part in the step counts as zero."""

    def _stored(self, reading: Reading, names: Sequence[str]) -> list[float]:
        return per_tensor(reading, names)


def per_tensor(reading: Reading, names: Sequence[str]) -> list[float]:
    """Return the values of single parameters, in order."""
    return [float(reading.by_parameter.get(name, 0.0)) for name in names]  # type: ignore[arg-type]
