"""The protocol of quantities: when they compute, what they compute, and what is stored.

For quantities of your own, subclass `SingleStepQuantity` or `TwoStepQuantity`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

Params = list[Tensor]


class Quantity:
    """Something a cockpit tracks.

    Args:
        track_schedule: says for the number of a step whether to track it.
        verbose: print what is stored.
    """

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        self._track_schedule, self._verbose = track_schedule, verbose
        self.output: dict[int, Any] = defaultdict(dict)

    def create_graph(self, global_step: int) -> bool:
        """Say whether the backward pass must be differentiable."""
        return False

    def extensions(self, global_step: int) -> list[Any]:
        """Return the BackPACK extensions that the step needs."""
        raise NotImplementedError

    def extension_hooks(self, global_step: int) -> list[Callable[[Any], Any]]:
        """Return the BackPACK extension hooks that the step needs."""
        return []

    def protected_savefields(self, global_step: int) -> set[str]:
        """Return names of BackPACK's attributes that are not to be deleted after the step."""
        return set()

    def should_compute(self, global_step: int) -> bool:
        """Say whether there is something to do at a step."""
        raise NotImplementedError

    def compute(self, global_step: int, params: Params, batch_loss: Tensor) -> tuple[int, Any]:
        """Return a value and the step to store it under; a value None is not stored."""
        raise NotImplementedError

    def track(self, global_step: int, params: Params, batch_loss: Tensor) -> None:
        """Compute and store, if the schedule says so. Called when the ``with`` block of a step is left."""
        if not self.should_compute(global_step):
            self._say(global_step, "No computation scheduled")
            return
        iteration, value = self.compute(global_step, params, batch_loss)
        if value is not None:
            self._say(global_step, f"Store iteration {iteration}, value {value}")
            self.output[iteration] = storable(value)

    def get_output(self) -> dict[int, Any]:
        """Return everything stored so far, by step."""
        return self.output

    def _say(self, global_step: int, text: str) -> None:
        if self._verbose:
            print(f"[Step {global_step} | {type(self).__name__}]: {text}")


class SingleStepQuantity(Quantity):
    """A quantity of one step: implement `extensions` and ``_compute(global_step, params, batch_loss)``."""

    def should_compute(self, global_step: int) -> bool:
        """Ask the schedule."""
        return bool(self._track_schedule(global_step))

    def compute(self, global_step: int, params: Params, batch_loss: Tensor) -> tuple[int, Any]:
        """Return the step and its value."""
        return global_step, self._compute(global_step, params, batch_loss)

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        raise NotImplementedError


class ByproductQuantity(SingleStepQuantity):
    """A quantity that needs nothing beyond an ordinary backward pass."""

    def extensions(self, global_step: int) -> list[Any]:
        """Return none."""
        return []


class NotCachedError(KeyError):
    """The start point was not seen."""


class TwoStepQuantity(Quantity):
    """A quantity of two steps: implement `is_start`, `is_end`, ``_compute_start``, ``_compute_end``.

    An end whose start was not seen (a resumed training, a schedule that begins in the middle) has no value.
    """

    SAVE_SHIFT = 0
    """What is computed at step n is stored under step n − SAVE_SHIFT."""

    def __init__(self, track_schedule: Callable[[int], Any], verbose: bool = False) -> None:
        super().__init__(track_schedule, verbose)
        self._cache: dict[int, dict[str, tuple[Any, Callable[[int], bool]]]] = defaultdict(dict)

    def is_start(self, global_step: int) -> bool:
        """Say whether a step is a start point."""
        raise NotImplementedError

    def is_end(self, global_step: int) -> bool:
        """Say whether a step is an end point."""
        raise NotImplementedError

    def should_compute(self, global_step: int) -> bool:
        """Say whether a step is either."""
        return self.is_start(global_step) or self.is_end(global_step)

    def compute(self, global_step: int, params: Params, batch_loss: Tensor) -> tuple[int, Any]:
        """Return the value of an end point, and free what is no longer needed."""
        value = self._compute(global_step, params, batch_loss)
        self.free_cache(global_step, global_step + 1)
        return global_step - self.SAVE_SHIFT, value

    def _compute(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        if self.is_start(global_step):
            self._compute_start(global_step, params, batch_loss)
        if not self.is_end(global_step):
            return None
        try:
            return self._compute_end(global_step, params, batch_loss)
        except NotCachedError:
            return None

    def _compute_start(self, global_step: int, params: Params, batch_loss: Tensor) -> None:
        raise NotImplementedError

    def _compute_end(self, global_step: int, params: Params, batch_loss: Tensor) -> Any:
        raise NotImplementedError

    def save_to_cache(self, global_step: int, key: str, value: Any, block_fn: Callable[[int], bool]) -> None:
        """Keep a value for later; ``block_fn(step)`` says whether it is still needed at a step."""
        self._cache[global_step][key] = (value, block_fn)

    def load_from_cache(self, global_step: int, key: str) -> Any:
        """Return a value kept at a step."""
        if key not in self._cache.get(global_step, {}):
            raise NotCachedError(f"nothing is kept under {key!r} at step {global_step}")
        return self._cache[global_step][key][0]

    def free_cache(self, global_step: int, virtual_step: int) -> None:
        """Forget what will not be needed at ``virtual_step``."""
        for step, kept in list(self._cache.items()):
            self._cache[step] = {key: entry for key, entry in kept.items() if entry[1](virtual_step)}
            if not self._cache[step]:
                del self._cache[step]


def storable(value: Any) -> Any:
    """Return a value without tensors: they become arrays on the CPU, also within containers."""
    match value:
        case Tensor():
            return value.detach().cpu().numpy()
        case dict():
            return {key: storable(item) for key, item in value.items()}
        case list():
            return [storable(item) for item in value]
        case tuple():
            return tuple(storable(item) for item in value)
        case np.generic():
            return value.item()
        case float() | int() | np.ndarray():
            return value
    raise NotImplementedError(f"a quantity's value cannot be stored: no rule for {type(value).__name__}")
