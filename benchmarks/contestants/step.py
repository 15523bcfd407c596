"""Step: a training step, untracked; contestants replace the backward pass or put work beside it."""

from __future__ import annotations

from benchmarks.problems.problem import Training

UNTRACKED = "untracked"
IDLE = "idle"
"""A tracker of which nothing is ever due: what is paid at the steps between."""


class Step:
    """The untracked training step of the problem, and what a contestant may change about it."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def step(self) -> None:
        """Run one step."""
        self.backward()
        self.training.optimizer.step()
        self.training.optimizer.zero_grad()

    def backward(self) -> None:
        """Leave the gradient of the mean loss in the parameters, and measure on the way."""
        self.training.losses(self.training.model).mean().backward()

    def settle(self) -> None:
        """Wait for work that was left to other threads."""

    def gaps(self) -> list[str]:
        """Say what was asked for and could not be measured."""
        return []

    def close(self) -> None:
        """Let go of files and hooks."""
