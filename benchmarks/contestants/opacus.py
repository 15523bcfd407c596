"""Opacus: norms of the gradients of single examples, from the gradients themselves or by ghost norms."""

from __future__ import annotations

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training


class FromGradients(Step):
    """Gradients of single examples, then their norms."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._model = GradSampleModule(training.model, loss_reduction="mean")
        self.norms: Tensor | None = None

    def backward(self) -> None:
        """Run the backward pass and reduce what its hooks left."""
        self.training.losses(self._model).mean().backward()
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self.norms = torch.stack([p.grad_sample.flatten(1).square().sum(1) for p in trained]).sum(0)
        for p in trained:
            p.grad_sample = None

    def close(self) -> None:
        """Remove the hooks."""
        self._model.remove_hooks()


class Ghost(Step):
    """Norms without the gradients, where Opacus knows how."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._model = GradSampleModuleFastGradientClipping(
            training.model, loss_reduction="mean", max_grad_norm=1.0, use_ghost_clipping=True
        )
        self.norms: Tensor | None = None

    def backward(self) -> None:
        """Run the backward pass and collect the norms."""
        self.training.losses(self._model).mean().backward()
        self.norms = self._model.get_norm_sample()

    def close(self) -> None:
        """Remove the hooks."""
        self._model.remove_hooks()


def make(name: str, training: Training, interval: int) -> Step:
    """Return one of the two ways to norms."""
    return Ghost(training) if name == "ghost_norms" else FromGradients(training)
