"""Problems with handwritten modules: reuse, functional calls, custom functions, routing, several outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.testing.problem import Problem, cross_entropy, features


class Twice(nn.Module):
    """One linear layer used twice; with ``functional`` the second use is ``F.linear`` on its weight."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.functional = functional
        self.inp, self.lin, self.out = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        h = torch.tanh(self.lin(torch.tanh(self.inp(x))))
        h = torch.tanh(F.linear(h, self.lin.weight) if self.functional else self.lin(h))
        logits: Tensor = self.out(h)
        return logits


class Einsum(nn.Module):
    """Heads as one three-dimensional parameter, contracted by einsum, and a raw scale."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Parameter(0.4 * torch.randn(2, 5, 4))
        self.mix = nn.Parameter(0.4 * torch.randn(2, 4, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        h = torch.tanh(torch.einsum("ni,hij->nhj", x, self.heads))
        return self.scale * torch.einsum("nhj,hjc->nc", h, self.mix)


class Cubic(torch.autograd.Function):
    """(x W)³ with a handwritten backward pass that can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The cube of the product."""
        ctx.save_for_backward(x, weight)
        return (x @ weight).pow(3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Chain rule through the cube, then through the product."""
        x, weight = ctx.saved_tensors
        inner = grads[0] * 3 * (x @ weight).square()
        return inner @ weight.T, x.T @ inner


class OwnFunction(nn.Module):
    """A layer made of a custom autograd function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.4 * torch.randn(5, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.head(Cubic.apply(x, self.weight))  # type: ignore[no-untyped-call]
        return logits


class Experts(nn.Module):
    """A mixture of experts: each example goes to its best expert only, times the router's probability."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(5, 3)
        self.experts = nn.ModuleList(nn.Linear(5, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        probability, choice = self.router(x).softmax(-1).max(-1)
        mixed = x.new_zeros(len(x), 6)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().squeeze(1)
            # An expert without rows is not called: its parameters have no gradient at this step.
            if len(rows):
                mixed = mixed.index_add(0, rows, torch.tanh(expert(x.index_select(0, rows))))
        logits: Tensor = self.head(mixed * probability[:, None])
        return logits


class Branches(nn.Module):
    """Control flow that depends on the data: each example takes one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        rows = [torch.tanh(self.large(r)) if r.norm() > 2.3 else torch.sin(self.small(r)) for r in x]
        logits: Tensor = self.head(torch.stack(rows))
        return logits


class Unused(nn.Module):
    """A layer that ``forward`` never touches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.used(x)
        return logits


PROBLEMS = (
    Problem("module_twice", Twice, features(5), cross_entropy),
    Problem("module_and_functional", lambda: Twice(functional=True), features(5), cross_entropy),
    Problem("einsum", Einsum, features(5), cross_entropy, note="raw parameters only"),
    Problem("own_function", OwnFunction, features(5), cross_entropy),
    Problem("experts", Experts, features(5), cross_entropy, note="an expert may get no example"),
    Problem("branches", Branches, features(5), cross_entropy, note="layers see one example [d] at a time"),
    Problem("unused", Unused, features(5), cross_entropy, note="idle.weight, idle.bias have no gradient"),
)
