"""curvlinops: the Hessian as a linear operator, its largest eigenvalue and its trace, beside an untracked step."""

from __future__ import annotations

from curvlinops import HessianLinearOperator, hutchinson_trace
from scipy.sparse.linalg import eigsh

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training

PRODUCTS = 10
"""Hessian-vector products for a trace."""


class Curvature(Step):
    """A training step, and a number of the Hessian at its parameters."""

    def __init__(self, training: Training, name: str) -> None:
        super().__init__(training)
        self._name = name
        self._criterion = training.criterion()
        self.value = float("nan")

    def backward(self) -> None:
        """Measure, then run the backward pass."""
        training = self.training
        parameters = [p for p in training.model.parameters() if p.requires_grad]
        data = [(training.inputs, training.targets)]
        hessian = HessianLinearOperator(
            training.model, self._criterion, parameters, data, check_deterministic=False
        )
        if self._name == "trace":
            self.value = float(hutchinson_trace(hessian, min(PRODUCTS, hessian.shape[0] - 1)))
        else:
            self.value = float(
                eigsh(hessian.to_scipy(), k=1, which="LA", tol=1e-3, return_eigenvectors=False)[0]
            )
        super().backward()


def make(name: str, training: Training, interval: int) -> Step:
    """Return a training with the trace or the largest eigenvalue."""
    return Curvature(training, name)
