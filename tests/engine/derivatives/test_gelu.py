"""Hessians through GELU: torch's, from less work, and no other gradients than before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine import native
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives import lean_gradients
from cockpit.engine.derivatives.gelu import twice
from layer_check import normal

F64 = torch.float64
EXTREMES = [0.0, -0.0, 1e-20, -1e-5, 8.0, -8.0, 40.0, -40.0, 1e4, -1e4]


def network(approximate: str) -> tuple[nn.Module, Tensor]:
    """Two activations: one of them has data behind it and the other has not."""
    layers = (nn.Linear(2, 300), nn.GELU(approximate), nn.Linear(300, 3))
    model = nn.Sequential(nn.GELU(approximate), *layers, nn.GELU(approximate)).to(F64)
    for k, p in enumerate(model.parameters()):
        p.data = 0.5 * normal(*p.shape, seed=k)
    return model, normal(4, 2, seed=9)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).square().sum(1)
    return found


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_products_are_those_of_torch(
    approximate: str, hand: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(approximate)
    parameters = dict(model.named_parameters())
    with monkeypatch.context() as patch:
        patch.setattr(lean_gradients, "LAYERS", {})
        theirs = HessianProduct([(losses(model, x), 1.0)], parameters)
    if not compiled:
        monkeypatch.setattr(native, "gelu_twice", lambda *_: None)
    vectors = normal(3, theirs.flat.size, seed=4)
    expected = torch.stack([theirs(v) for v in vectors])
    ours = HessianProduct([(losses(model, x), 1.0)], parameters, hand)
    torch.testing.assert_close(torch.stack([ours(v) for v in vectors]), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.rows(vectors), expected, rtol=1e-10, atol=1e-12)
    assert ours._batchable


def by_autograd(x: Tensor, delta: Tensor, v: Tensor, approximate: str) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(F.gelu(x, approximate=approximate), x, delta, create_graph=True)
    (found,) = torch.autograd.grad(first, x, v)
    return found.double()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_every_number_is_that_of_torch(
    approximate: str, dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.cat([3 * normal(1000), torch.tensor(EXTREMES, dtype=F64)]).to(dtype)
    delta, v = (normal(len(x), seed=k).to(dtype) for k in (1, 2))
    expected = by_autograd(x.double(), delta.double(), v.double(), approximate)
    by_kernel = compiled and native.serves(x)  # whose sums are wide
    if not compiled:
        monkeypatch.setattr(native, "gelu_twice", lambda *_: None)
    by_delta, by_x = twice(v, delta, x, approximate, (True, True))
    assert by_delta is not None
    assert by_x is not None
    atol = 1e-13 if dtype == F64 else 3e-7 if by_kernel else 4e-7
    torch.testing.assert_close(by_x.double(), expected, rtol=0, atol=atol)
    if dtype != F64:
        theirs = by_autograd(x, delta, v, approximate)
        assert (by_x - expected).norm() <= (theirs - expected).norm()
    torch.testing.assert_close(
        by_delta, torch.ops.aten.gelu_backward(v, x, approximate=approximate), rtol=0, atol=0
    )


def test_gradients_are_the_same_to_the_bit() -> None:
    model, x = network("tanh")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(losses(model, x).sum(), parameters)
    start = losses(model, x)
    with lean_gradients.lean_gradients([start]):
        found = torch.autograd.grad(start.sum(), parameters, create_graph=True)
    assert all(map(torch.equal, found, expected))
