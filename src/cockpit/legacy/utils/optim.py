"""What is known of optimizers."""

from __future__ import annotations

from collections.abc import Collection
from math import isclose

import torch
from torch import Tensor


class ComputeStep:
    """The update step, for the one optimizer where it follows from the gradient alone."""

    @staticmethod
    def is_sgd_default_kwargs(optimizer: object) -> bool:
        """Say whether the optimizer is SGD without momentum, dampening, weight decay and Nesterov's rule."""
        if not isinstance(optimizer, torch.optim.SGD):
            return False
        zero = ("weight_decay", "momentum", "dampening")
        return all(
            not group["nesterov"] and all(isclose(group[key], 0.0, abs_tol=1e-8) for key in zero)
            for group in optimizer.param_groups
        )

    @staticmethod
    def update_sgd_default_kwargs(
        optimizer: torch.optim.Optimizer, parameter_ids: Collection[int]
    ) -> dict[int, Tensor]:
        """Return −lr·∇L for the parameters with these ids; the gradients must be in place."""
        updates: dict[int, Tensor] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in parameter_ids:
                    updates[id(p)] = -group["lr"] * p.grad.detach()
        assert len(updates) == len(set(parameter_ids)), "Could not compute step for all specified parameters"
        return updates

    @staticmethod
    def compute_update_step(
        optimizer: torch.optim.Optimizer, parameter_ids: Collection[int]
    ) -> dict[int, Tensor]:
        """Return the update of each parameter, by id; `NotImplementedError` for other optimizers."""
        if not ComputeStep.is_sgd_default_kwargs(optimizer):
            raise NotImplementedError(
                f"the update step of {type(optimizer).__name__} is not known in advance"
            )
        return ComputeStep.update_sgd_default_kwargs(optimizer, parameter_ids)
