"""Individual gradients, Hessian and Gauss-Newton diagonal by plain autograd, row after row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


def rows(values: Tensor, parameters: Sequence[Tensor], by_grad: bool = True) -> list[list[Tensor | None]]:
    """∂values[i]/∂parameters for every i, on a graph that is kept; None where there is no path.

    With ``by_grad`` false gradients are collected from ``.grad``, for graphs that refuse ``autograd.grad``.
    """
    if by_grad:
        return [
            list(torch.autograd.grad(v, parameters, retain_graph=True, allow_unused=True))
            for v in values.flatten()
        ]
    kept, found = [p.grad for p in parameters], []
    for v in values.flatten():
        for p in parameters:
            p.grad = None
        v.backward(retain_graph=True)
        found.append([p.grad for p in parameters])
    for p, grad in zip(parameters, kept, strict=True):
        p.grad = grad
    return found


def flat(row: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """One row as a vector [D], zeros where there is no path."""
    pairs = zip(row, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def hessian(loss: Tensor, parameters: Sequence[Tensor]) -> Array:
    """∇²loss [D, D], one double-backward row per parameter element."""
    first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    gradient = flat(first, parameters)
    if not gradient.requires_grad:
        return np.zeros((len(gradient),) * 2)
    H = torch.stack([flat(row, parameters) for row in rows(gradient, parameters)])
    return ((H + H.T) / 2).numpy()


def ggn_diagonal(outputs: Tensor, loss: Callable[[Tensor], Tensor], parameters: Sequence[Tensor]) -> Array:
    """The diagonal [D] of Jᵀ Λ J with J = ∂outputs/∂θ and Λ = ∇²loss over all entries of the outputs."""
    J = torch.stack([flat(row, parameters) for row in rows(outputs, parameters)])
    curved = torch.autograd.functional.hessian(loss, outputs.detach())
    assert isinstance(curved, Tensor)
    return (J * (curved.reshape(len(J), len(J)) @ J)).sum(0).numpy()
