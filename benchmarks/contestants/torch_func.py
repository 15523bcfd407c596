"""torch.func: gradients of single examples by vmap of grad, and their norms; what one writes without a library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from benchmarks.contestants.step import Step
from benchmarks.problems.problem import Training, losses


class PerExample(Step):
    """All gradients of single examples, their squared norms, and their mean as the gradient of the step."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        model = training.model
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        fixed: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if not p.requires_grad}
        fixed |= dict(model.named_buffers())
        kind = training.device.partition(":")[0]

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast(kind, torch.bfloat16, enabled=training.problem.autocast):
                outputs = functional_call(model, {**parameters, **fixed}, (x[None],))
            return losses(training.problem.loss, outputs, y[None]).squeeze(0)

        self._each: Any = vmap(grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
        self.norms: Tensor | None = None

    def backward(self) -> None:
        """Differentiate every example's loss."""
        training = self.training
        parameters = {n: p.detach() for n, p in self._trained.items()}
        gradients, _ = self._each(parameters, training.inputs, training.targets)
        self.norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
        for name, p in self._trained.items():
            p.grad = gradients[name].mean(0)


def make(name: str, training: Training, interval: int) -> Step:
    """Return the one contestant there is."""
    return PerExample(training)
