"""Hessians through layer normalisation: torch's, from less work, and no other gradients than before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives import layer_norm, lean_gradients
from layer_check import normal

F64 = torch.float64
KINDS = {
    "one axis": nn.LayerNorm(6),
    "two axes": nn.LayerNorm((5, 6)),
    "no weight": nn.LayerNorm(6, elementwise_affine=False),
    "no bias": nn.LayerNorm(6, bias=False),
}


def network(kind: str) -> tuple[nn.Module, Tensor]:
    """Two times normalised: one of them has data behind it and the other has not."""
    norm = KINDS[kind]
    model = nn.Sequential(nn.LayerNorm((5, 6)), nn.Linear(6, 6), nn.Tanh(), norm, nn.Softplus()).to(F64)
    for k, p in enumerate(model.parameters()):
        p.data = normal(*p.shape, seed=k).to(F64)
    return model, normal(4, 5, 6, seed=9)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).flatten(1).square().sum(1)
    return found


@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_torch(kind: str, hand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(kind)
    parameters = dict(model.named_parameters())
    theirs = HessianProduct([(losses(model, x), 1.0)], parameters)
    vectors = normal(3, theirs.flat.size, seed=4)
    expected = torch.stack([theirs(v) for v in vectors])
    calls: list[int] = []
    own = layer_norm.twice
    monkeypatch.setattr(layer_norm, "serves", lambda *_: True)  # there may be no kernel for float64
    monkeypatch.setattr(layer_norm, "twice", lambda *given: calls.append(1) or own(*given))
    ours = HessianProduct([(losses(model, x), 1.0)], parameters, hand)
    torch.testing.assert_close(torch.stack([ours(v) for v in vectors]), expected, rtol=1e-10, atol=1e-11)
    assert len(calls) == 6
    torch.testing.assert_close(ours.rows(vectors), expected, rtol=1e-10, atol=1e-11)
    assert ours._batchable


def test_gradients_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network("one axis")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(losses(model, x).sum(), parameters)
    monkeypatch.setattr(layer_norm, "serves", lambda *_: True)
    start = losses(model, x)
    with lean_gradients.lean_gradients([start]):
        found = torch.autograd.grad(start.sum(), parameters, create_graph=True)
    assert all(map(torch.equal, found, expected))
    assert "KnownGradients" in found[-1].grad_fn.name()  # type: ignore[union-attr]
