"""For tests, ours and those of plugin authors: a zoo of small problems that covers every family of layers."""

from __future__ import annotations

from cockpit.testing.problem import Batch, Problem, Weighting, objective
from cockpit.testing.problems import problem, problems

__all__ = ["Batch", "Problem", "Weighting", "objective", "problem", "problems"]
