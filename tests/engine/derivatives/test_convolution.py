"""Hessians of convolutions: torch's, from less work, and no other gradients than before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cockpit.engine.curvature import hessian
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.derivatives.lean_gradients import lean_gradients
from layer_check import normal

F64 = torch.float64
LAYERS = {
    "1d": (nn.Conv1d(2, 3, 3, padding=1), (2, 7)),
    "2d": (nn.Conv2d(2, 3, 3), (2, 5, 6)),
    "3d": (nn.Conv3d(2, 2, 2), (2, 3, 4, 3)),
    "stride": (nn.Conv2d(2, 3, 3, stride=2, padding=(1, 0)), (2, 6, 6)),
    "dilation": (nn.Conv2d(2, 3, 2, dilation=2), (2, 5, 5)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    "no bias": (nn.Conv2d(2, 3, 3, bias=False), (2, 5, 5)),
    "same": (nn.Conv2d(2, 3, 3, padding="same"), (2, 4, 4)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (2, 3, 3)),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    """Two layers of a kind, so that one has data behind it and the other has not."""
    layer, shape = copy.deepcopy(LAYERS[name])
    first = nn.Conv2d(1, shape[0], 1) if len(shape) == 3 else nn.Identity()
    channels = 1 if len(shape) == 3 else shape[0]
    model = nn.Sequential(first, nn.Tanh(), layer, nn.Softplus()).to(F64)
    for k, p in enumerate(model.parameters()):
        p.data = 0.5 * normal(*p.shape, seed=k)
    return model, normal(3, channels, *shape[1:], seed=9)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).flatten(1).square().sum(1)


@contextmanager
def as_torch_does(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def nothing(_: Any) -> Iterator[None]:
        yield

    with monkeypatch.context() as patch:
        patch.setattr(hessian, "lean_gradients", nothing)
        yield


class Calls(TorchDispatchMode):
    """Notes which gradients of convolutions are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution_backward.default:
            self.shapes += [tuple(g.shape) for g, asked in zip(found, args[-1], strict=True) if asked]
        elif func is torch.ops.aten.convolution.default:
            self.shapes.append(tuple(found.shape))
        return found


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_products_are_those_of_torch(
    name: str, frozen: bool, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(name)
    parameters = {n: p for n, p in model.named_parameters() if not (frozen and n == "2.weight")}
    model.get_parameter("2.weight").requires_grad_(not frozen)
    ours = HessianProduct([(losses(model, x), 1.0)], parameters)
    with as_torch_does(monkeypatch):
        theirs = HessianProduct([(losses(model, x), 1.0)], parameters)
    vectors = normal(3, ours.flat.size, seed=4)
    expected = torch.stack([theirs(v) for v in vectors])
    found = ours.rows(vectors) if batched else torch.stack([ours(v) for v in vectors])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not batched or ours._batchable


def test_gradients_are_the_same_to_the_bit() -> None:
    model, x = network("2d")
    parameters = list(model.parameters())
    expected = torch.autograd.grad(losses(model, x).sum(), parameters)
    start = losses(model, x)
    with lean_gradients([start]):
        found = torch.autograd.grad(start.sum(), parameters, create_graph=True)
    assert all(map(torch.equal, found, expected))
    again = torch.autograd.grad(start.sum(), parameters)  # and nothing is left on the graph
    assert all(map(torch.equal, again, expected))
    assert all(g.grad_fn is not None and "KnownGradients" in g.grad_fn.name() for g in found)


def test_nothing_is_derived_by_the_data() -> None:
    model, x = network("2d")
    product = HessianProduct([(losses(model, x), 1.0)], dict(model.named_parameters()))
    with Calls() as calls:
        product(torch.ones(product.flat.size, dtype=F64))
    assert tuple(x.shape) not in calls.shapes
    assert (3, 2, 5, 6) in calls.shapes, "the input of the second layer"


def test_what_is_checkpointed_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network("2d")
    parameters = dict(model.named_parameters())
    again = checkpoint(model, x, use_reentrant=False).flatten(1).square().sum(1)
    found = HessianProduct([(again, 1.0)], parameters)(
        torch.ones(sum(p.numel() for p in parameters.values()), dtype=F64)
    )
    with as_torch_does(monkeypatch):
        plain = HessianProduct([(losses(model, x), 1.0)], parameters)
    torch.testing.assert_close(found, plain(torch.ones(plain.flat.size, dtype=F64)), rtol=1e-10, atol=1e-12)
