"""What a product with the Hessian makes of BatchNorm's gradients: that of autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.kernels import batch_norm
from engine.kernels.factors import normal

SHAPES = [(3, 5, 2, 2), (2, 17, 7, 7), (4, 3, 40, 31), (1, 2, 9), (40, 3, 2, 3, 4), (7, 19), (300, 2, 1)]


def problem(shape: tuple[int, ...], mean: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Input, output gradient, weight, and vectors for the gradients by input, weight and bias."""
    x, delta, v = (normal(*shape, seed=k, dtype=dtype) for k in range(3))
    w, a, b = (normal(shape[1], seed=k) for k in range(3, 6))
    return x + mean, delta + 0.5, w, v, a, b


def by_autograd(
    x: Tensor, delta: Tensor, w: Tensor | None, v: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, ...]:
    weight = torch.ones(x.shape[1], device=x.device) if w is None else w
    x, delta, weight = (t.double().requires_grad_() for t in (x, delta, weight))
    bias = torch.zeros_like(weight).requires_grad_()
    result = F.batch_norm(x, None, None, weight, bias, training=True)
    first = torch.autograd.grad(result, (x, weight, bias), delta, create_graph=True)
    return torch.autograd.grad(first, (delta, x, weight), [t.double() for t in (v, a, b)])


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    over = [0, *range(2, x.ndim)]
    wide = x.double()
    inverse = (wide.var(over, correction=0) + 1e-5).rsqrt()
    return wide.mean(over).float(), inverse.float()


@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_are_those_of_autograd(
    device: torch.device, shape: tuple[int, ...], weighted: bool, mean: float
) -> None:
    x, delta, w, v, a, b = problem(shape, mean, torch.float32)
    assert batch_norm.takes(delta, x)
    found = batch_norm.batch_norm_twice((v, a, b), delta, x, w if weighted else None, moments(x))
    for ours, theirs in zip(found, by_autograd(x, delta, w if weighted else None, v, a, b), strict=True):
        assert (ours.double() - theirs).norm() <= (1e-4 if mean else 2e-6) * theirs.norm() + 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_large_means_cost_no_digits(device: torch.device, shape: tuple[int, ...]) -> None:
    """The derivative by the weight is a covariance: it does not change."""
    x, delta, w, v, a, b = problem(shape, 0.0, torch.float32)
    small, large = (
        batch_norm.batch_norm_twice((v + mean, a, b), delta + mean, x, w, moments(x))[2] for mean in (0, 64)
    )
    scale = (v.double() * delta.double()).abs().mean() * x.numel() / shape[1]
    assert float((large - small).abs().max()) <= 3e-5 * float(scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(device: torch.device, dtype: torch.dtype) -> None:
    x, delta, w, v, a, b = problem((3, 4, 6, 6), 0.0, dtype)
    found = batch_norm.batch_norm_twice((v, a, b), delta, x, w, moments(x))
    assert [t.dtype for t in found] == [dtype, dtype, torch.float32]
    for ours, theirs in zip(found, by_autograd(x, delta, w, v, a, b), strict=True):
        assert (ours.double() - theirs).norm() <= torch.finfo(dtype).eps * theirs.norm()


def test_vectors_that_do_not_lie_in_order(device: torch.device) -> None:
    x, delta, w, v, a, b = problem((3, 5, 4, 6), 0.0, torch.float32)
    expected = batch_norm.batch_norm_twice((v, a, b), delta, x, w, moments(x))
    turned = v.contiguous(memory_format=torch.channels_last)
    found = batch_norm.batch_norm_twice((turned, a, b), delta, x, w, moments(x))
    assert all(map(torch.equal, found, expected))


def test_what_it_does_not_take(device: torch.device) -> None:
    x, delta, *_ = problem((3, 4, 6, 6), 0.0, torch.float32)
    assert not batch_norm.takes(delta.double(), x.double())
    assert not batch_norm.takes(delta, x.to(memory_format=torch.channels_last))
    assert not batch_norm.takes(delta[:0], x[:0])
