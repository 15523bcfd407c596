"""Gradients that are derived again: by hand, without the numbers of those by weights, as by autograd's engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.derivatives import lean
from cockpit.engine.derivatives.derive import by_hand
from cockpit.engine.derivatives.gradient_graph import GradientGraph
from layer_check import filled, normal


class Tied(nn.Module):
    """A weight that is used as it is, transposed, and by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(normal(5, 4)), nn.Parameter(normal(4, seed=1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(F.linear(x, self.w))
        z = torch.addmm(self.b, y, self.w, alpha=2.0).sin() + y @ self.w
        return F.linear(z, self.w) * self.w.sum()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)), (6, 4), 2),
    "time": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (6, 2, 4), 2),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2, groups=2), nn.Tanh()
        ),
        (3, 2, 6, 6),
        2,
    ),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2, 2), nn.Sigmoid()), (3, 2, 3, 3), 1),
    "norm": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.GELU()), (4, 2, 5), 1),
    "tied": (Tied, (6, 4), 3),
}


def losses_of(model: nn.Module, shape: Sequence[int]) -> Tensor:
    return model(normal(*shape, seed=7)).sin().flatten(1).square().sum(1)


def both(model: nn.Module, shape: Sequence[int]) -> list[GradientGraph]:
    """Return the graph by the engine, and the one by hand."""
    parameters, weights = list(model.parameters()), normal(shape[0], seed=3)
    with torch.enable_grad():
        theirs = GradientGraph([losses_of(model, shape)], parameters, [weights])
        with by_hand():
            return [theirs, GradientGraph([losses_of(model, shape)], parameters, [weights])]


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_of_the_engine(name: str) -> None:
    make, shape, postponed = MODELS[name]
    model = filled(make())
    theirs, ours = both(model, shape)
    assert len(ours._later) == postponed
    vectors = [normal(*p.shape, seed=k) for k, p in enumerate(model.parameters())]
    with torch.no_grad():
        pairs = list(zip(ours.derived(vectors), theirs.derived(vectors), strict=True))
        several = [torch.stack([v, 2 * v.sin()]) for v in vectors]
        pairs += list(zip(ours.derived(several, True), theirs.derived(several, True), strict=True))
    for found, expected in pairs:
        if found is None:
            assert expected is None or not expected.any()
        else:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_no_gradient_by_a_weight_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[list[bool]] = []
    convolution = lean.LEAN["ConvolutionBackward0"]

    def seen(node: object, call: lean.Call) -> lean.Found:
        masks.append(list(call.needed))
        return convolution(node, call)

    monkeypatch.setitem(lean.LEAN, "ConvolutionBackward0", seen)
    model = filled(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3)))
    with by_hand(), torch.enable_grad():
        GradientGraph([losses_of(model, (2, 1, 3, 3))], list(model.parameters()), [torch.ones(2).double()])
    assert masks == [[False, False, True]]  # of the convolution: its bias alone


def test_what_is_constant() -> None:
    w = nn.Parameter(normal(3))
    for hand in (False, True):
        with torch.enable_grad(), by_hand() if hand else torch.enable_grad():
            graph = GradientGraph([w.sum().expand(2)], [w], [torch.ones(2).double()])
        assert graph.constant


def test_a_slope_that_does_not_change_is_multiplied_with_inputs_that_do() -> None:
    """Where the losses are linear in a layer's outputs, its weight is in the Hessian by its input alone."""
    first, second = filled(nn.Linear(3, 4)), filled(nn.Linear(4, 2))
    parameters = [*first.parameters(), *second.parameters()]
    vectors = [normal(*p.shape, seed=k) for k, p in enumerate(parameters)]
    found = []
    for hand in (False, True):
        losses = second(first(normal(5, 3)).tanh()).sum(1)
        with torch.enable_grad(), by_hand() if hand else torch.enable_grad():
            graph = GradientGraph([losses], parameters, [torch.ones(5).double()])
        with torch.no_grad():
            found.append(graph.derived(vectors))
    for ours, theirs in zip(*found[::-1], strict=True):
        if theirs is not None:
            torch.testing.assert_close(torch.zeros_like(theirs) if ours is None else ours, theirs)
