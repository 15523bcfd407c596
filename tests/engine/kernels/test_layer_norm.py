"""What a product with the Hessian makes of LayerNorm's gradients: that of the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.kernels import layer_norm
from engine.kernels.factors import normal

SHAPES = [(3, 5), (40, 768), (2, 700, 33), (7, 1), (3, 5000)]


def problem(shape: tuple[int, ...], mean: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Input, output gradient, weight, and vectors for the gradients by input, weight and bias."""
    x, delta, v = (normal(*shape, seed=k, dtype=dtype) for k in range(3))
    w, a, b = (normal(shape[-1], seed=k) for k in range(3, 6))
    return x + mean, delta + 0.5, w, v, a, b


def by_autograd(
    x: Tensor, delta: Tensor, w: Tensor | None, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, ...]:
    weight = torch.ones(x.shape[-1], device=x.device) if w is None else w
    x, delta, weight = (t.double().requires_grad_() for t in (x, delta, weight))
    bias = torch.zeros_like(weight).requires_grad_()
    result = F.layer_norm(x, weight.shape, weight, bias)
    first = torch.autograd.grad(result, (x, weight, bias), delta, create_graph=True)
    return torch.autograd.grad(first, (delta, x, weight), [t.double() for t in (v, a, b)])


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.double()
    inverse = (wide.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return wide.mean(-1, keepdim=True).float(), inverse.float()


@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_are_those_of_autograd(
    device: torch.device, shape: tuple[int, ...], weighted: bool, mean: float
) -> None:
    x, delta, w, v, a, b = problem(shape, mean, torch.float32)
    assert layer_norm.takes(delta, x, shape[-1])
    found = layer_norm.layer_norm_twice((v, a, b), delta, x, w if weighted else None, moments(x))
    for ours, theirs in zip(found, by_autograd(x, delta, w if weighted else None, v, a, b), strict=True):
        assert (ours.double() - theirs).norm() <= (1e-4 if mean else 2e-6) * theirs.norm() + 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(device: torch.device, dtype: torch.dtype) -> None:
    x, delta, w, v, a, b = problem((30, 40), 0.0, dtype)
    found = layer_norm.layer_norm_twice((v, a, b), delta, x, w, moments(x))
    assert [t.dtype for t in found] == [dtype, dtype, torch.float32]
    for ours, theirs in zip(found, by_autograd(x, delta, w, v, a, b), strict=True):
        assert (ours.double() - theirs).norm() <= torch.finfo(dtype).eps * theirs.norm()


def test_what_it_does_not_take(device: torch.device) -> None:
    x, delta, *_ = problem((30, 40), 0.0, torch.float32)
    assert not layer_norm.takes(delta.double(), x.double(), 40)
    assert not layer_norm.takes(delta.T, x.T, 30)
    assert not layer_norm.takes(delta, x, layer_norm.LARGEST + 1)
