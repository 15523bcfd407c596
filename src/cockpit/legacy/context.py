"""What a cockpit was told about a step, for quantities to ask for while the step is tracked.

One `Frame` for each ``with cockpit(...)`` block that is open, the innermost last: cockpits may nest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cockpit.quantities.quantity import Reading


@dataclass(eq=False)
class Frame:
    """One open block: the step's number, what the user handed in, and what was measured."""

    step: int
    info: Mapping[str, Any]
    names: list[str]
    """The parameters' names, in the order in which they were handed in."""
    readings: dict[int, Reading] = field(default_factory=dict)
    """By the identity of the quantity."""

    def get(self, name: str) -> Any:
        """Return what was handed in under this name."""
        if name not in self.info:
            raise self.missing(name)
        return self.info[name]

    def missing(self, name: str) -> KeyError:
        """Return the error that asks for something."""
        return KeyError(f"Please hand in '{name}' via cockpit(info=...).")


_FRAMES: list[Frame] = []


def frame(global_step: int) -> Frame:
    """Return the innermost open block of a step; an empty one if there is none."""
    found = [f for f in _FRAMES if f.step == global_step]
    return found[-1] if found else Frame(global_step, {}, [])


@contextmanager
def opened(frame: Frame) -> Iterator[None]:
    """Let quantities see the frame inside the block."""
    _FRAMES.append(frame)
    try:
        yield
    finally:
        _FRAMES.remove(frame)


def get_individual_losses(global_step: int) -> Tensor:
    """Return the individual losses at the current iteration."""
    losses: Tensor = frame(global_step).get("individual_losses")
    return losses


def get_batch_size(global_step: int) -> int:
    """Return the batch size at the current iteration."""
    size: int = frame(global_step).get("batch_size")
    return size


def get_optimizer(global_step: int) -> Any:
    """Return the optimizer at the current iteration."""
    return frame(global_step).get("optimizer")


def get_loss(global_step: int) -> Tensor:
    """Return the mini-batch loss at the current iteration; warn if it is NaN."""
    loss: Tensor = frame(global_step).get("loss")
    if bool(loss.isnan().any()):
        text = f"[Step {global_step}] The mini-batch loss is NaN; quantities computed from it may be, too."
        warnings.warn(text, stacklevel=2)
    return loss
