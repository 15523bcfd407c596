"""Two experiments of the paper that are known to six digits, as problems for the twins and for watched runs.

F1, learning curves do not tell the story: two runs in a two-dimensional valley have the same loss curve, one
by bouncing between its walls (α near 1), one by crawling (α near −1).
F11, implicit regularisation: f(x) = w₂w₁x has a curve of minima of the same loss and different sharpness.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, sin

import numpy as np
import torch
from torch import Tensor, nn

from cockpit.testing import Batch, Problem

F1_STEPS = 20
F11_TRAIN = 100


class Valley(nn.Module):
    """½ θᵀQθ, the same for every example; Q has the eigenvalues 0.5 and 10 along axes turned by 30°."""

    Q: Tensor

    def __init__(self) -> None:
        super().__init__()
        turn = torch.tensor([[cos(pi / 6), -sin(pi / 6)], [sin(pi / 6), cos(pi / 6)]], dtype=torch.float64)
        self.register_buffer("Q", turn @ torch.diag(torch.tensor([0.5, 10.0], dtype=torch.float64)) @ turn.T)
        self.theta = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (0.5 * self.theta @ self.Q @ self.theta).expand(len(x))


class Product(nn.Module):
    """w₂ w₁ x, from w₁ = 0.1 and w₂ = 1.7."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))
        self.w2 = nn.Parameter(torch.tensor(1.7, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w2 * self.w1 * x


def valley() -> Problem:
    """F1: no noise; take at least two examples, which are all alike."""
    return Problem("F1", Valley, lambda n, g: ((torch.zeros(n, 1),), torch.zeros(n)), lambda f, y: f)


def bouncing(model: nn.Module) -> torch.optim.Optimizer:
    """F1, run A: a constant learning rate of 0.2."""
    return torch.optim.SGD(model.parameters(), lr=0.2)


def crawling(model: nn.Module) -> torch.optim.Optimizer:
    """F1, run B: learning rates 7.2e-3 · 0.87^t."""
    optimizer = torch.optim.SGD(model.parameters(), lr=7.2e-3)

    def shrink(o: torch.optim.Optimizer, *_: object) -> None:
        for group in o.param_groups:
            group["lr"] *= 0.87

    optimizer.register_step_post_hook(shrink)
    return optimizer


F1_RUNS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {"A": bouncing, "B": crawling}


def product() -> Problem:
    """F11: squared error on the first n of 300 points of y = 1.4 x + N(0, 1); 100 are the training set."""

    def draw(n: int, _: torch.Generator) -> Batch:
        random = np.random.RandomState(42)
        x, noise = (random.normal(0, 1, 300).astype(np.float32) for _ in range(2))
        y = np.float32(1.4) * x + noise
        return (torch.from_numpy(x[:n]),), torch.from_numpy(y[:n])

    return Problem("F11", Product, draw, lambda f, y: (f - y).square())


def descent(model: nn.Module) -> torch.optim.Optimizer:
    """F11: gradient descent with a learning rate of 0.1."""
    return torch.optim.SGD(model.parameters(), lr=0.1)
