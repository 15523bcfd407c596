"""The work of columns as the graph's shapes tell it, against the multiplications that torch counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode

from cockpit.engine.curvature.column_work import products
from cockpit.engine.derivatives.graph import nodes_behind


class Adapter(nn.Module):
    """A frozen layer with two small trained ones beside it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(size, size).requires_grad_(False)
        self.down, self.up = nn.Linear(size, 2, bias=False), nn.Linear(2, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Attention(nn.Module):
    """Two products of which both operands are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(x).chunk(3, -1)
        return self.outputs((q @ k.transpose(-1, -2)).softmax(-1) @ v).flatten(1)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def biases_only(module: nn.Module) -> nn.Module:
    for p in module.parameters():
        p.requires_grad_(p.ndim == 1)
    return module


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (lambda: chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)), (7, 6)),
    "tokens": (lambda: chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4, bias=False)), (7, 3, 6)),
    "frozen after": (lambda: chain(nn.Linear(6, 5), nn.ReLU(), frozen(nn.Linear(5, 9, bias=False))), (7, 6)),
    "frozen between": (lambda: chain(nn.Linear(6, 5), frozen(nn.Linear(5, 9)), nn.Linear(9, 3)), (7, 6)),
    "frozen before": (lambda: chain(frozen(nn.Linear(6, 50)), nn.ReLU(), nn.Linear(50, 3)), (7, 6)),
    "adapters": (lambda: chain(Adapter(6), nn.ReLU(), Adapter(6), frozen(nn.Linear(6, 3))), (7, 6)),
    "biases": (lambda: biases_only(chain(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))), (7, 6)),
    "images": (lambda: chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2, padding=1)), (7, 2, 6, 5)),
    "frozen images": (lambda: chain(nn.Conv1d(2, 4, 3), frozen(nn.Conv1d(4, 6, 3, groups=2))), (7, 2, 9)),
    "patches": (lambda: chain(nn.Conv1d(2, 4, 1), frozen(nn.Conv1d(4, 6, 3, stride=3))), (7, 2, 9)),
    "larger images": (lambda: chain(nn.Conv1d(2, 4, 3), nn.ConvTranspose1d(4, 3, 4, stride=2)), (7, 2, 9)),
    "attention": (Attention, (7, 3, 4)),
}
UNSEEN = {"frozen before", "adapters", "biases"}
"""Where something is multiplied on the way forward that no gradient passes."""


def seen(model: nn.Module, x: Tensor) -> tuple[Tensor, list[GradientEdge]]:
    """Return the outputs, and where those of the layers with trained parameters are."""
    ends: list[GradientEdge] = []
    for layer in model.modules():
        if any(p.requires_grad for p in layer.parameters(recurse=False)):
            layer.register_forward_hook(lambda _, __, y: ends.append(get_gradient_edge(y)))
    return model(x), ends


@pytest.mark.parametrize("case", CASES)
def test_what_columns_are_multiplied_with(case: str) -> None:
    build, shape = CASES[case]
    output, ends = seen(build(), torch.ones(shape))
    found = products(nodes_behind(output), [e.node for e in ends])
    with FlopCounterMode(display=False) as counted:
        torch.autograd.grad(output, ends, torch.ones_like(output), retain_graph=True)
    assert sum(size * passed for size, _, passed in found) == counted.get_total_flops() // 2


@pytest.mark.parametrize("case", sorted(set(CASES) - UNSEEN))
def test_what_a_training_step_multiplies(case: str) -> None:
    build, shape = CASES[case]
    model = build()
    with FlopCounterMode(display=False) as counted:
        output = model(torch.ones(shape))
        output.sum().backward(retain_graph=True)
    found = products(nodes_behind(output), [])
    assert sum(size * (1 + trained) for size, trained, _ in found) == counted.get_total_flops() // 2


def test_a_kernel_with_strides_is_at_most_as_wide_as_shapes_allow() -> None:
    model = chain(nn.Conv1d(1, 1, 1), frozen(nn.Conv1d(1, 1, 3, stride=2, padding=1)))
    ((size, _, _),) = [p for p in products(nodes_behind(model(torch.ones(1, 1, 8))), []) if p[0] > 8]
    assert 4 * 3 <= size <= 4 * 4


def test_nothing_is_unpacked() -> None:
    """Saved tensors may be anywhere; a look at the shapes must not bring them back."""

    def refuse(_: object) -> Tensor:
        raise AssertionError("unpacked")

    model = CASES["frozen images"][0]()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, refuse):
        output, ends = seen(model, torch.ones(7, 2, 9))
    assert len(list(products(nodes_behind(output), [e.node for e in ends]))) == 2
