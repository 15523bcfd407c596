"""Stand-in losses from the gradients at a model's outputs."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.seeing.proxy import Proxy
from layer_check import by_autograd, filled, normal

LABELS = torch.tensor([0, 1, 1, 0, 1])


class Ready(list[tuple[Tensor, int]]):
    """Notes stand-ins and, on request, takes their individual gradients while the graph is alive."""

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.gradients = model, dict[str, Tensor]()

    def __call__(self, losses: Tensor, examples: int) -> None:
        self.append((losses.detach(), examples))
        if self.model is not None:
            self.gradients = by_autograd(self.model, losses)


@pytest.mark.parametrize("outputs", ["one", "vector", "two"])
def test_stand_ins_have_the_gradients_of_the_losses(outputs: str) -> None:
    model = filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    y = model(normal(5, 3))
    parts = {"one": [y], "vector": [y[:, 0].clone()], "two": [y * 1, y[:, 1].sin()]}[outputs]
    losses = sum((p.reshape(5, -1).exp().sum(1) for p in parts), torch.zeros(5, dtype=torch.float64))
    expected = by_autograd(model, losses)
    ready = Ready(model)
    Proxy(parts, 5, ready)
    losses.mean().backward(retain_graph=True)  # or one head is freed before the gradient of the other comes
    assert len(ready) == 1
    assert ready[0][1] == 5
    for name, G in expected.items():
        torch.testing.assert_close(ready.gradients[name], G, rtol=1e-10, atol=1e-14)


def test_an_output_that_the_objective_does_not_use() -> None:
    model = filled(nn.Linear(3, 2))
    y, extra = model(normal(5, 3)), model(normal(5, 3)).square()
    expected = by_autograd(model, F.cross_entropy(y, LABELS, reduction="none"))
    ready = Ready(model)
    Proxy([y, extra], 5, ready)
    F.cross_entropy(y, LABELS).backward()
    torch.testing.assert_close(ready.gradients["weight"], expected["weight"])


def test_only_once() -> None:
    y = filled(nn.Linear(3, 2))(normal(5, 3))
    ready = Ready()
    Proxy([y], 5, ready)
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert len(ready) == 1


def test_not_after_removal() -> None:
    y = filled(nn.Linear(3, 2))(normal(5, 3))
    ready = Ready()
    proxy = Proxy([y], 5, ready)
    proxy.remove()
    proxy.remove()
    y.sum().backward()
    assert not ready
    assert proxy.outputs == []


@pytest.mark.parametrize("examples", [0, 4])
def test_outputs_without_the_examples_are_not_waited_for(examples: int) -> None:
    y = filled(nn.Linear(3, 2))(normal(5, 3))
    ready = Ready()
    assert Proxy([y, y.sum()], examples, ready).waiting is False
    y.sum().backward()
    assert not ready


def test_the_graph_is_not_kept_alive() -> None:
    y = filled(nn.Linear(3, 2))(normal(5, 3))
    proxy = Proxy([y], 5, Ready())
    graph = weakref.ref(y)
    proxy.remove()
    del y, proxy
    gc.collect()
    assert graph() is None
