"""Hessians through batch normalisation: torch's, from less work, and no other gradients than before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine import native
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives import batch_norm, lean_gradients
from layer_check import normal

F64 = torch.float64
KINDS = {  # the layers around, the normalisation, the images
    "1d": (nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), (4, 2, 21)),
    "2d": (nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), (4, 2, 5, 7)),
    "3d": (nn.Conv3d(2, 3, 1), nn.BatchNorm3d(3), (4, 2, 2, 3, 3)),
    "numbers": (nn.Linear(2, 19), nn.BatchNorm1d(19), (6, 2)),
    "no weight": (nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, affine=False), (4, 2, 5, 7)),
    "no statistics": (nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False), (4, 2, 5, 7)),
    "many channels": (nn.Conv2d(2, 19, 1), nn.BatchNorm2d(19), (4, 2, 3, 3)),
}


def network(kind: str, last: bool = False, dtype: torch.dtype = F64) -> tuple[nn.Module, Tensor]:
    """Images, two times normalised: one of them has data behind it and the other has not."""
    layer, norm, shape = KINDS[kind]
    model = nn.Sequential(type(norm)(2), layer, nn.Tanh(), norm, nn.Softplus()).to(dtype)
    for k, p in enumerate(model.parameters()):
        p.data = normal(*p.shape, seed=k).to(dtype)
    x = normal(*shape, seed=9).to(dtype)
    return model, x.contiguous(memory_format=torch.channels_last) if last else x


def losses(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model(x).flatten(1).square().sum(1)
    return found


def without_ours(monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: Tensor) -> HessianProduct:
    """Products as torch makes them."""
    with monkeypatch.context() as patch:
        patch.setattr(lean_gradients, "LAYERS", {})
        return HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize(
    ("kind", "last"), [*((kind, False) for kind in KINDS), ("2d", True), ("many channels", True)]
)
def test_products_are_those_of_torch(
    kind: str, last: bool, hand: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(kind, last)
    theirs = without_ours(monkeypatch, model, x)
    vectors = normal(3, theirs.flat.size, seed=4)
    expected = torch.stack([theirs(v) for v in vectors])
    if not compiled:
        monkeypatch.setattr(native, "batch_norm_twice", lambda *_: None)
    ours = HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()), hand)
    torch.testing.assert_close(torch.stack([ours(v) for v in vectors]), expected, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(ours.rows(vectors), expected, rtol=1e-10, atol=1e-11)
    assert ours._batchable


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("last", [False, True])
def test_single_precision_is_as_good_as_that_of_torch(
    last: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over ten draws: roundings of one of them may be lucky."""
    if not compiled:
        monkeypatch.setattr(native, "batch_norm_twice", lambda *_: None)
    theirs, ours = [], []
    for seed in range(10):
        found = []
        for dtype in (F64, torch.float32):
            model, x = network("2d", last, dtype)
            x.copy_(normal(*x.shape, seed=20 + seed))
            plain = without_ours(monkeypatch, model, x)
            product = HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()))
            vector = normal(plain.flat.size, seed=seed).to(dtype)
            found.append(torch.stack([plain(vector), product(vector)]).double())
        truth = found[0][0]
        off = (found[1] - truth).norm(dim=1) / truth.norm()
        theirs.append(off[0])
        ours.append(off[1])
    assert torch.stack(ours).norm() <= (1.5 if compiled else 1.0) * torch.stack(theirs).norm()


def test_gradients_are_the_same_to_the_bit() -> None:
    model, x = network("2d")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(losses(model, x).sum(), parameters)
    start = losses(model, x)
    with lean_gradients.lean_gradients([start]):
        found = torch.autograd.grad(start.sum(), parameters, create_graph=True)
    assert all(map(torch.equal, found, expected))
    assert "KnownGradients" in found[-1].grad_fn.name()  # type: ignore[union-attr]


def test_moments_that_were_learnt_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network("2d")
    model.eval()
    monkeypatch.setattr(batch_norm, "twice", None)
    theirs = without_ours(monkeypatch, model, x)
    vector = normal(theirs.flat.size, seed=4)
    for hand in (False, True):
        ours = HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()), hand)
        torch.testing.assert_close(ours(vector), theirs(vector), rtol=1e-10, atol=1e-12)


def test_a_weight_of_zero() -> None:
    model, x = network("2d")
    model.get_parameter("3.weight").data.zero_()
    ours = HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()))
    assert ours(normal(ours.flat.size, seed=4)).isfinite().all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(8, 5, 6, 7), (40, 17)])
def test_large_means_cost_no_digits(
    shape: tuple[int, ...], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "batch_norm_twice", lambda *_: None)
    x, delta, v = (normal(*shape, seed=k) + 100 * (k > 0) for k in range(3))
    a, b, w = (normal(shape[1], seed=k) for k in range(3, 6))
    over = [0, *range(2, x.ndim)]
    moments = x.mean(over), (x.var(over, correction=0) + 1e-5).rsqrt()
    single, wide = (
        [t.float().to(dtype) for t in (v, a, b, delta, x, w, *moments)] for dtype in (torch.float32, F64)
    )
    found, truth = (batch_norm.twice((v, a, b), d, x, w, (m, s)) for v, a, b, d, x, w, m, s in (single, wide))
    for ours, exact in zip(found, truth, strict=True):
        assert (ours.double() - exact).norm() <= 2e-5 * exact.norm()
