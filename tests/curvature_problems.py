"""Small problems in float64 with dense curvature matrices, written without the code under test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit.engine.curvature.loss_graph import LossGraph

F64 = torch.float64


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).to(F64)


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)).to(
        F64
    )


class TiedTransformer(nn.Module):
    """One encoder layer between an embedding and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.to(F64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embedding(x)) @ self.embedding.weight.T


def token_losses(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), y, reduction="none").mean(1)


def binary_losses(logits: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(y, 3).to(logits), reduction="none").mean(1)


def squared_losses(f: Tensor, y: Tensor) -> Tensor:
    return (f - F.one_hot(y, 3)).square().mean(1)


def cross_entropy(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="none")


Problem = tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]


def problem(name: str, examples: int = 6) -> Problem:
    g = torch.Generator().manual_seed(1)
    y = torch.randint(0, 3, (examples,), generator=g)
    x = torch.randn(examples, 4, dtype=F64, generator=g)
    if name == "conv":
        return conv(), torch.randn(examples, 1, 6, 6, dtype=F64, generator=g), y, cross_entropy
    if name == "tokens":
        tokens = torch.randint(0, 5, (examples, 3), generator=g)
        return TiedTransformer(), tokens, tokens.roll(1, 1), token_losses
    loss = {"mse": squared_losses, "bce": binary_losses, "ce": cross_entropy}[name]
    return mlp(), x, y, loss


def dense_hessian(problem: Problem) -> Tensor:
    """H by torch.func, written independently of the code under test; attention in its plain form."""
    model, x, y, loss = problem
    names = dict(model.named_parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in names.values()])

    def mean_loss(vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for p in names.values()])
        values = {n: v.reshape(p.shape) for (n, p), v in zip(names.items(), pieces, strict=True)}
        return loss(torch.func.functional_call(model, values, (x,)), y).mean()

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(mean_loss, flat)


def forward(problem: Problem) -> Tensor:
    model, x, y, loss = problem
    with sdpa_kernel(SDPBackend.MATH):
        return loss(model(x), y)


def dense_ggn(problem: Problem) -> Tensor:
    """G by a loop over examples: their outputs' Jacobians and their losses' Hessians."""
    model, x, y, loss = problem
    total = torch.zeros(())
    with sdpa_kernel(SDPBackend.MATH):
        for n in range(len(x)):
            output = model(x[n : n + 1])
            rows = [
                torch.cat(
                    [
                        g.reshape(-1)
                        for g in torch.autograd.grad(f, list(model.parameters()), retain_graph=True)
                    ]
                )
                for f in output.reshape(-1)
            ]
            jacobian = torch.stack(rows)
            hessian = torch.autograd.functional.hessian(
                lambda f: loss(f, y[n : n + 1]).sum(), output.detach()
            )
            size = output.numel()
            total = total + jacobian.T @ hessian.reshape(size, size) @ jacobian / len(x)
    return total


def square_sums(model: nn.Module, examples: int) -> Callable[..., dict[str, Tensor]]:
    """What an engine would hand in: sums over columns and examples of (J_nᵀ v_n)², one example at a time."""
    names = dict(model.named_parameters())

    def sums(graph: LossGraph, vectors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        total = {name: torch.zeros_like(p) for name, p in names.items()}
        for k, n in product(range(len(vectors[0])), range(examples)):
            only = [torch.zeros_like(v[k]) for v in vectors]
            for mine, v in zip(only, vectors, strict=True):
                mine[n] = v[k, n]
            grads = torch.autograd.grad(
                graph.outputs,
                list(names.values()),
                only,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for name, g in zip(names, grads, strict=True):
                total[name] += g.square()
        return total

    return sums


class Cube(torch.autograd.Function):
    """A function written in Python that can be derived as often as one likes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g
