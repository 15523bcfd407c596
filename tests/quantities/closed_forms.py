"""Trainings under a cockpit of which quantities are known on paper, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from session.loops import Records, batch, losses_of, net, sgd, trained

F64 = torch.float64
Body = Callable[[nn.Module, int], Tensor]
"""(model, step) → losses."""
GGN = "diag_ggn_exact"  # positive, so that TIC needs no ε


def run(
    folder: Path,
    model: nn.Module,
    losses: Body,
    quantities: list[Any],
    steps: int = 2,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
) -> Records:
    def body(cockpit: Any, m: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(losses(m, t))

    return trained(folder, body, steps, model, optimizer, quantities)


def value(found: Records, name: str, t: int = 0, scope: str = "", status: str = "ok") -> Any:
    number, why = found[t, name, scope]
    assert why.split(":")[0] == status, (name, t, scope, why)
    return number


def mlp(folder: Path, quantities: list[Any], steps: int = 2, **settings: Any) -> Records:
    """The small tanh net on six examples a step."""
    return run(folder, net(), lambda m, t: losses_of(m, *batch(t)), quantities, steps, **settings)


class Quadratic(nn.Module):
    """½ (θ − x_n)ᵀ A (θ − x_n) for every example."""

    A: Tensor

    def __init__(self, A: Tensor, theta: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("A", A)
        self.theta = nn.Parameter(torch.ones_like(A[0]) if theta is None else theta.clone())

    def forward(self, x: Tensor) -> Tensor:
        away = self.theta - x
        return 0.5 * ((away @ self.A) * away).sum(1)
