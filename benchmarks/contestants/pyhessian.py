"""PyHessian: the largest eigenvalue and the trace of the Hessian, beside an untracked step."""

from __future__ import annotations

from pyhessian import hessian

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training

PRODUCTS = 10
"""Hessian-vector products for a trace; for an eigenvalue at most 100, until it moves by less than 0.1 %."""


class Curvature(Step):
    """A training step, and a number of the Hessian at its parameters."""

    def __init__(self, training: Training, name: str) -> None:
        super().__init__(training)
        self._name = name
        self._criterion = training.criterion()
        self.value = float("nan")

    def backward(self) -> None:
        """Measure (PyHessian puts the model into evaluation mode), then run the backward pass."""
        training = self.training
        trained = training.model.training
        operator = hessian(
            training.model,
            self._criterion,
            data=(training.inputs, training.targets),
            cuda=training.device.startswith("cuda"),
        )
        if self._name == "trace":
            estimates = operator.trace(maxIter=PRODUCTS, tol=0.0)
            self.value = sum(estimates) / len(estimates)
        else:
            self.value = float(operator.eigenvalues(maxIter=100, tol=1e-3, top_n=1)[0][0])
        training.model.train(trained)
        training.optimizer.zero_grad()
        super().backward()


def make(name: str, training: Training, interval: int) -> Step:
    """Return a training with the trace or the largest eigenvalue."""
    return Curvature(training, name)
