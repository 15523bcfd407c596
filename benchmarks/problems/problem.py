"""What a problem is: a network, one fixed batch of its data, its loss and its optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.problems.data import Batch, Data

LossName = Literal["cross_entropy", "mse", "token_cross_entropy"]


@dataclass(frozen=True)
class Scale:
    """Sizes that are chosen on the command line: 0 means the problem's own."""

    batch: int = 0
    image: int = 0
    length: int = 0


@dataclass(frozen=True, eq=False)
class Problem:
    """A network with its data; everything is made anew by each call, and always the same.

    Attributes:
        name: as in the paper, where it is there.
        network: makes the network for a scale.
        batch: makes inputs and targets for a batch size, on the CPU.
        size: batch size of the definition.
        loss: how targets and outputs become losses.
        adam: AdamW in place of plain SGD.
        learning_rate: of the optimiser.
        autocast: bfloat16 autocast in the forward pass.
        heavy: too slow for one thread of a CPU.
    """

    name: str
    network: Callable[[Scale], nn.Module]
    batch: Callable[[int, Scale, Data], Batch]
    size: int
    loss: LossName = "cross_entropy"
    adam: bool = False
    learning_rate: float = 1e-3
    autocast: bool = False
    heavy: bool = False


@dataclass(eq=False)
class Training:
    """One training of a problem: what a contestant gets."""

    problem: Problem
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    targets: Tensor
    device: str

    def outputs(self, model: nn.Module) -> Tensor:
        """Run the forward pass."""
        kind = self.device.partition(":")[0]
        with torch.autocast(kind, torch.bfloat16, enabled=self.problem.autocast):
            found: Tensor = model(self.inputs)
            return found

    def losses(self, model: nn.Module) -> Tensor:
        """Run the forward pass and return one loss per example, [N]."""
        return losses(self.problem.loss, self.outputs(model), self.targets)

    def criterion(self) -> nn.Module:
        """Return the mean loss of `outputs` as a module, as curvlinops and PyHessian want it."""
        return TokenLoss() if self.problem.loss == "token_cross_entropy" else self.criterion_of_scores()

    def criterion_of_scores(self) -> nn.Module:
        """Return the mean loss of `scores` as one of torch's own modules, the only ones BackPACK knows."""
        return nn.MSELoss() if self.problem.loss == "mse" else nn.CrossEntropyLoss()

    def scores(self, model: nn.Module) -> Tensor:
        """Run the forward pass; classes are in the middle axis, if there are tokens."""
        found = self.outputs(model)
        return found.movedim(-1, 1) if self.problem.loss == "token_cross_entropy" else found


class TokenLoss(nn.CrossEntropyLoss):
    """The mean over all tokens: outputs [N, T, C] and targets [N, T]."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Put tokens in a row: classes in the middle axis are several times slower."""
        return super().forward(outputs.flatten(0, 1), targets.flatten())


def losses(loss: LossName, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one loss per example: outputs [N, C], or [N, T, C] of which the mean over tokens is taken."""
    match loss:
        case "cross_entropy":
            return F.cross_entropy(outputs.float(), targets, reduction="none")
        case "token_cross_entropy":
            # tokens in a row: classes in the middle axis, as cross_entropy wants them, are several times slower
            each = F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten(), reduction="none")
            return each.view(targets.shape).mean(1)
        case "mse":
            return (outputs - targets).square().flatten(1).mean(1)


def training(problem: Problem, device: str, scale: Scale, data: Data) -> Training:
    """Make a fresh training; the same seed gives every contestant the same start."""
    torch.manual_seed(0)
    model = problem.network(scale).to(device)
    inputs, targets, _ = problem.batch(scale.batch or problem.size, scale, data)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if problem.adam:
        optimizer = torch.optim.AdamW(parameters, lr=problem.learning_rate, fused=device.startswith("cuda"))
    else:
        optimizer = torch.optim.SGD(parameters, lr=problem.learning_rate)
    return Training(problem, model, optimizer, inputs.to(device), targets.to(device), device)
