"""This package: its configurations, and every quantity alone."""

from __future__ import annotations

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training
from cockpit.bench.watched import Watched


class Ours(Step):
    """A watched training."""

    def __init__(self, training: Training, what: str, interval: int) -> None:
        super().__init__(training)
        self._watched = Watched(training.model, training.optimizer, training.losses, what, interval)
        self.step = self._watched.step  # type: ignore[method-assign]
        self.settle = self._watched.settle  # type: ignore[method-assign]
        self.gaps = self._watched.gaps  # type: ignore[method-assign]
        self.close = self._watched.close  # type: ignore[method-assign]


def make(name: str, training: Training, interval: int) -> Step:
    """Return a training watched by a configuration, a quantity, or nothing that is ever due."""
    return Ours(training, name, interval)
