"""What a product with the Hessian makes of GELU's gradient: that of autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.kernels import gelu
from engine.kernels.factors import normal

EXTREMES = [0.0, -0.0, 1e-20, -1e-5, 3.0, -3.0, 8.0, -8.0, 40.0, -40.0, 1e4, -1e4]


def problem(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    spread = normal(3000, dtype=torch.float64) * 3
    x = torch.cat([spread, torch.tensor(EXTREMES, dtype=torch.float64, device=spread.device)]).to(dtype)
    delta, v = (normal(len(x), seed=k, dtype=dtype) for k in (1, 2))
    return v, delta, x


def by_autograd(v: Tensor, delta: Tensor, x: Tensor, approximate: str) -> tuple[Tensor, ...]:
    delta, x = (t.double().requires_grad_() for t in (delta, x))
    result = torch.nn.functional.gelu(x, approximate=approximate)
    (first,) = torch.autograd.grad(result, x, delta, create_graph=True)
    return torch.autograd.grad(first, (delta, x), v.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_every_number_is_that_of_autograd(device: torch.device, approximate: str, dtype: torch.dtype) -> None:
    v, delta, x = problem(dtype)
    assert gelu.takes(delta, x)
    found = gelu.gelu_twice(v, delta, x, approximate == "tanh")
    epsilon = torch.finfo(dtype).eps
    for ours, theirs in zip(found, by_autograd(v, delta, x, approximate), strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=epsilon, atol=3e-6)


def test_what_it_does_not_take(device: torch.device) -> None:
    _, delta, x = problem(torch.float32)
    assert not gelu.takes(delta.double(), x.double())
    assert not gelu.takes(delta[:0], x[:0])
    assert not gelu.takes(delta.view(2, -1).T, x.view(2, -1).T)
