from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.derivatives.graph import (
    _WALKED,
    dropped_graphs_noticed,
    edge,
    edges_behind,
    frontier,
    names_behind,
    nodes_behind,
)
from cockpit.errors import Gap


class Cube(torch.autograd.Function):
    """x³; ``honest`` decides whether its backward can be differentiated."""

    honest = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 3 * x * x * g
        return slope if Cube.honest else slope.detach()


def leaf(*shape: int) -> Tensor:
    return torch.ones(*shape, requires_grad=True)


def test_the_edge_of_a_tensor_is_stable_and_missing_without_a_graph():
    x = leaf(2)
    y = x * 2
    assert edge(y) == edge(y) != edge(x)
    assert edge(y.detach()) is None
    first, second = y.unbind()
    assert edge(first)[0] is edge(second)[0]
    assert edge(first) != edge(second)


def test_walking_back_stops_at_walls():
    x = leaf(2)
    middle = x.sin()
    end = middle.cos().sum()
    assert edge(x) in edges_behind([edge(end)])
    passed = edges_behind([edge(end)], [edge(middle)])
    assert edge(middle) in passed
    assert edge(x) not in passed


def test_a_wall_does_not_hide_another_way():
    x = leaf(2)
    middle = x.sin()
    end = (middle.cos() + x).sum()
    assert edge(x) in edges_behind([edge(end)], [edge(middle)])


def test_the_frontier_is_what_the_losses_are_computed_from():
    x = leaf(3, 2)
    hidden = x.sin()
    logits = hidden * 2
    losses = logits.square().sum(1)
    assert frontier(losses, (hidden, logits, logits, torch.ones(3)), {"x": x}) == [1]
    assert frontier(losses, (x,), {"x": x}) == [0]


@pytest.mark.parametrize("through", ["hidden", "parameter"])
def test_a_way_round_the_outputs_is_a_gap(through):
    x = leaf(3, 2)
    hidden = x.sin()
    logits = hidden * 2
    losses = logits.square().sum(1) + (hidden if through == "hidden" else x).square().sum()
    with pytest.raises(Gap, match=r"^no_outputs: .*past the model's outputs"):
        frontier(losses, (logits,), {"x": x})


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_a_custom_backward_that_forgets_its_graph_is_noticed(honest, last, monkeypatch):
    monkeypatch.setattr(Cube, "honest", honest)
    x = leaf(2)
    end = Cube.apply(x * 2) if last else Cube.apply(x * 2).sin()

    def differentiate() -> None:
        with dropped_graphs_noticed([end]):
            torch.autograd.grad(end.sum(), x, create_graph=True)

    if honest:
        differentiate()
    else:
        with pytest.raises(Gap, match=r"^no_double_backward: the backward of Cube cannot be differentiated"):
            differentiate()


def test_custom_functions_beyond_the_stops_do_not_matter(monkeypatch):
    monkeypatch.setattr(Cube, "honest", False)
    x = leaf(2)
    output = Cube.apply(x)
    end = output.sin()
    with dropped_graphs_noticed([end], [output]):
        torch.autograd.grad(end.sum(), output, create_graph=True)


def test_no_hook_stays_behind(monkeypatch):
    handles = []
    register = torch.autograd.function.BackwardCFunction.register_hook

    def registered(node: torch.autograd.graph.Node, hook: object) -> object:
        handles.append(register(node, hook))
        return handles[-1]

    monkeypatch.setattr(torch.autograd.function.BackwardCFunction, "register_hook", registered)
    with dropped_graphs_noticed([Cube.apply(leaf(2))]):
        assert len(handles) == 1
        assert handles[0].id in handles[0].hooks_dict_ref()
    assert handles[0].id not in (handles[0].hooks_dict_ref() or {})


def test_all_nodes_behind_a_tensor() -> None:
    x = torch.ones(3, requires_grad=True)
    end = (x.exp() * x.sin()).sum()
    assert nodes_behind(end) == {node for node, _ in edges_behind([edge(end)])}
    assert nodes_behind(end) is nodes_behind(end)
    assert names_behind(end) == tuple(sorted(node.name() for node in nodes_behind(end)))
    assert nodes_behind(torch.ones(2)) == frozenset()


def test_a_tensor_that_is_changed_in_place_is_another_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    end = x.exp()
    before = nodes_behind(end)
    end.mul_(2)
    assert nodes_behind(end) > before


def test_a_graph_is_not_kept_for_longer_than_its_tensor() -> None:
    before = len(_WALKED)
    end = torch.ones(3, requires_grad=True).exp()
    nodes_behind(end)
    assert len(_WALKED) == before + 1
    del end
    assert len(_WALKED) == before
