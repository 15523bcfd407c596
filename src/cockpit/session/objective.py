"""Objective: the mean of a batch's losses, of which only the gradient is wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LATELY = 8
"""How many kinds of batches are remembered."""

_backward = torch.autograd.backward
_run: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""What torch's `backward` ends in; before that it compares shapes, which takes 20 us. (None in another torch.)"""


class Objective:
    r"""Runs ``losses.mean().backward()`` without the mean: $\partial L/\partial\ell_n = 1/N$ is the same at every step.

    What torch made of the mean's derivative once, in the losses' own numbers, is handed to its engine from then on; so
    gradients are the same bits, and three launches less are made.
    """

    def __init__(self) -> None:
        self._weights: dict[Any, Tensor] = {}

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of the mean of losses [N]."""
        if type(losses) is not Tensor:  # others may have their own idea of a mean
            losses.mean().backward()
            return
        kind = (losses.shape, losses.dtype, losses.device, torch.is_autocast_enabled(losses.device.type))
        weights = self._weights.get(kind)
        if weights is None or weights._version:  # a hook of the user's may have written into it
            if len(self._weights) >= LATELY:
                self._weights.clear()
            weights = self._weights[kind] = _derivative(losses)
        replaced = torch.autograd.backward is not _backward  # by whoever wants to see all passes
        if _run is None or replaced:
            torch.autograd.backward(losses, weights)
        else:
            _run((losses,), (weights,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    def forget(self) -> None:
        """Let go of the derivatives."""
        self._weights.clear()


def _derivative(losses: Tensor) -> Tensor:
    """Return the derivative of the mean of losses by each of them, as a backward pass would find it."""
    with torch.enable_grad():
        free = losses.detach().requires_grad_()
        found: Tensor = torch.autograd.grad(free.mean(), free)[0]
    return found
