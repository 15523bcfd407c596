"""The gradient of a softmax, derived once more and twice more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.derivatives.softmax import SoftmaxGradient
from layer_check import normal


def example(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    p = normal(3, 4, n, seed=1).softmax(-1).to(dtype).requires_grad_()
    return p, normal(3, 4, n, seed=2).to(dtype).requires_grad_(), normal(3, n, 4, seed=3).to(dtype).mT


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 5, 16, 33, 128])
def test_derivatives_are_those_of_the_formula(
    n: int, dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "softmax_twice", lambda *_: None)
    p, d, v = example(n, dtype)
    ours = SoftmaxGradient.apply(p, d)
    theirs = p * (d - (p * d).sum(-1, keepdim=True))
    torch.testing.assert_close(ours, theirs)
    found, expected = (torch.autograd.grad(s, (p, d), v) for s in (ours, theirs))
    torch.testing.assert_close(found, expected)


def test_it_can_be_derived_again() -> None:
    p, d, _ = example(5, torch.float64)
    assert torch.autograd.gradgradcheck(SoftmaxGradient.apply, (p, d))
