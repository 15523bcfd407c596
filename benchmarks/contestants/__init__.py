"""The contestants: for every environment, what is measured in it and how one step of it is run."""

from __future__ import annotations

from importlib import import_module

from benchmarks.contestants.step import UNTRACKED, Step
from benchmarks.problems.problem import Training


def make(environment: str, name: str, training: Training, interval: int) -> Step:
    """Return a contestant of an environment; this imports the peer, so it works in that environment alone."""
    if name == UNTRACKED:
        return Step(training)
    module = import_module(f"benchmarks.contestants.{environment}")
    made: Step = module.make(name, training, interval)
    return made
