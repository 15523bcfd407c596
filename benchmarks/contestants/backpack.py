"""BackPACK alone: one extension in one backward pass."""

from __future__ import annotations

from typing import Any

from backpack import backpack, extend, extensions
from torch import nn

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training


class Extended(Step):
    """A training step with an extension, as BackPACK's documentation writes it."""

    def __init__(self, training: Training, name: str) -> None:
        super().__init__(training)
        self._extension: Any = getattr(extensions, name)
        self._model: nn.Module = extend(training.model)
        self._criterion: nn.Module = extend(training.criterion_of_scores())

    def backward(self) -> None:
        """Run the backward pass with the extension."""
        loss = self._criterion(self.training.scores(self._model), self.training.targets)
        with backpack(self._extension()):
            loss.backward()


def make(name: str, training: Training, interval: int) -> Step:
    """Return a training with the extension of that name."""
    return Extended(training, name)
