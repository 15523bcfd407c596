"""Sums of squares by layers, all columns at once, against one backward pass for each example and column."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.coverage.coverage import Plan, Way
from cockpit.engine.coverage.examination import Examination
from cockpit.engine.curvature import column_sums
from cockpit.engine.curvature import square_sums as module
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.square_sums import LayerSums, Passes
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.gradients import individual
from cockpit.engine.seeing.capture import Capture
from cockpit.errors import Gap
from curvature_problems import F64
from curvature_problems import square_sums as one_by_one
from engine.shared_parameters import LENGTH, SHARED, WIDTH
from layer_check import filled, normal


class Twice(nn.Module):
    """A weight used twice, once before and once after a non-linearity."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh()).flatten(1)


class Tied(nn.Module):
    """A table that is also the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).tanh().sum(1))


class Bare(nn.Module):
    """A parameter that no layer knows, next to a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3) * 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Attention(nn.Module):
    """A layer with two outputs, of which one is used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0].flatten(1)


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


CASES = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (4, 6)),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 3)), (4, 3, 6)),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (4, 6)),
    "convolution": (lambda: images(nn.Conv2d(2, 3, 2, stride=2), nn.ReLU(), nn.MaxPool2d(2)), (4, 2, 8, 8)),
    "groups": (lambda: images(nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(), nn.AvgPool2d(3)), (4, 4, 4, 4)),
    "one pixel": (lambda: images(nn.Conv1d(2, 4, 3, groups=2)), (4, 2, 3)),
    "norms": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3)), (4, 6)),
    "twice": (lambda: Twice(nn.Linear(3, 3)), (4, 3)),
    "convolution twice": (lambda: Twice(nn.Conv1d(2, 2, 3, padding=1)), (4, 2, 3)),
    "attention": (Attention, (4, 3, 4)),
    "bare": (Bare, (4, 6)),
}


def frozen(layer: nn.Module, but: str = "") -> nn.Module:
    for name, p in layer.named_parameters():
        p.requires_grad_(name == but)
    return layer


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def watched(model: nn.Module, x: Tensor) -> tuple[LossGraph, Tensor, Plan, Capture]:
    capture = Capture(model)
    capture.keep_outputs = True
    capture.arm()
    output = model(x)
    losses = output.flatten(1).square().sum(1)
    plan = Examination(capture, losses, trained(model)).plan(batchnorm=False)
    return LossGraph(losses, (output,)), losses, plan, capture


def columns(graph: LossGraph, count: int = 3) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    return tuple(torch.randn(count, *x.shape, dtype=F64, generator=g) for x in graph.outputs)


def compare(
    model: nn.Module, x: Tensor, passes: Passes | None = None, count: int = 3, launching: bool = False
) -> None:
    graph, losses, plan, capture = watched(model, x)
    parameters, vectors = dict(model.named_parameters()), columns(graph, count)
    sums = LayerSums(Subject.seen(losses, capture), plan, parameters, passes)
    sums._launching = launching  # as on a GPU
    found = sums(graph, vectors)
    expected = one_by_one(model, len(losses))(graph, vectors)
    assert set(found) == set(expected)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("few", [2**15, 0])
def test_all_columns_at_once_equal_one_example_and_column_at_a_time(
    case: str, batched: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_sums, "FEW", few)
    torch.manual_seed(0)
    build, shape = CASES[case]
    passes = Passes(batched)
    compare(build().double(), torch.randn(*shape, dtype=F64), passes)
    assert passes.batched is batched


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_layers_together_equal_one_example_and_column_at_a_time(case: str, count: int) -> None:
    torch.manual_seed(0)
    build, shape = CASES[case]
    compare(build().double(), torch.randn(*shape, dtype=F64), count=count, launching=True)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("biased", [(True, True, True), (True, False, True), (True, False, False)])
def test_the_biases_of_layers_together(count: int, biased: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    layers = [layer for bias in biased for layer in (nn.Linear(4, 4, bias=bias), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(4, 2)).double()
    compare(model, torch.randn(5, 4, dtype=F64), count=count, launching=True)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("block", [2**24, 40, 1])
def test_a_table_that_is_also_a_weight(count: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(individual, "BLOCK", block)
    compare(Tied().double(), torch.tensor([[0, 1, 1], [2, 3, 4], [4, 4, 4]]), count=count)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", SHARED)
def test_what_all_examples_share(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are taken where they meet: no example goes back by itself."""
    build, served = SHARED[name]
    went: list[str] = []
    original = module.rows
    monkeypatch.setattr(
        module, "rows", lambda losses, chosen, **k: went.extend(chosen) or original(losses, chosen, **k)
    )
    passes = Passes()
    for seed in range(2):  # the second time by a known path
        compare(filled(build()), normal(4, LENGTH, WIDTH, seed=seed), passes, count=count)
    assert not served & set(went)
    assert bool(served) is (not went)
    assert set(passes.paths) == served


def test_work_is_counted_once_for_calls_of_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    original = module.steps
    monkeypatch.setattr(module, "steps", lambda *a: counted.append(a) or original(*a))
    passes, model = Passes(), nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double()
    found = []
    for examples in (4, 4, 7):
        graph, losses, plan, capture = watched(model, torch.randn(examples, 6, dtype=F64))
        sums = LayerSums(Subject.seen(losses, capture), plan, dict(model.named_parameters()), passes)
        found.append([sums.steps(graph, 3), sums.steps(graph, 9)])
        capture.disarm()
    assert len(counted) == 4
    assert found[0] == found[1] == found[2]


def test_columns_that_do_not_fit_go_back_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    seen = []
    original = module.derivatives
    monkeypatch.setattr(module, "derivatives", lambda *a, **k: seen.append(k) or original(*a, **k))
    build, shape = CASES["linear"]
    for launching, size in ((False, "SMALL_PASS"), (True, "PASS")):
        with monkeypatch.context() as patched:
            patched.setattr(module, size, 2 * 4 * (5 + 3))  # two columns of four examples
            compare(build().double(), torch.randn(*shape, dtype=F64), launching=launching)
        assert seen == [{"batched": True}, {}]
        seen.clear()


def test_the_outputs_of_the_model_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns need not go back to where they come from."""
    torch.manual_seed(0)
    monkeypatch.delattr(module, "derivatives")
    compare(nn.Linear(6, 3).double(), torch.randn(4, 6, dtype=F64))


def test_what_cannot_be_batched_goes_back_column_by_column() -> None:
    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad * (2.0 if float(grad.sum()) else 2)  # reads a number

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Stubborn.apply(self.layer(x))

    torch.manual_seed(0)
    passes = Passes()
    compare(Net().double(), torch.randn(4, 6, dtype=F64), passes)
    assert not passes.batched


def test_a_parameter_without_a_way_is_a_gap() -> None:
    build, shape = CASES["bare"]
    model = build().double()
    graph, losses, plan, capture = watched(model, torch.ones(*shape, dtype=F64))
    ways = {n: type(c)(Way.NONE, "told so") if n == "scale" else c for n, c in plan.ways.items()}
    sums = LayerSums(Subject.seen(losses, capture), Plan(ways), dict(model.named_parameters()))
    with pytest.raises(Gap, match="not_covered: scale: told so"):
        sums(graph, columns(graph))


def test_the_work_is_counted_in_training_steps() -> None:
    for build, shape, expected in (
        (lambda: nn.Linear(6, 3), (4, 6), 1 / 2),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), (4, 6), (1 + 9 + 1) / (2 + 3)),
        (lambda: images(nn.Conv1d(2, 2, 1)), (4, 2, 5), 9 / 2),
        (lambda: nn.Sequential(frozen(nn.Linear(6, 6)), nn.Linear(6, 6)), (4, 6), 1 / 2),
        (lambda: nn.Sequential(nn.Linear(6, 6), frozen(nn.Linear(6, 6))), (4, 6), (1 + 9) / (2 + 2)),
        (lambda: nn.Sequential(frozen(nn.Linear(6, 6), "bias"), frozen(nn.Linear(6, 6))), (4, 6), 55 / 12),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh()), (4, 6), 9),
    ):
        model = build().double()
        graph, losses, plan, capture = watched(model, torch.ones(*shape, dtype=F64))
        sums = LayerSums(Subject.seen(losses, capture), plan, trained(model))
        assert sums.steps(graph, 9) == pytest.approx(expected)


def test_a_dead_graph_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    graph, losses, _, capture = watched(model, torch.ones(4, 6, dtype=F64))
    assert len(capture.uses()) == 1
    capture.outputs.clear()
    del graph, losses
    assert capture.uses() == []


def test_half_precision_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).bfloat16()
    graph, losses, plan, capture = watched(model, torch.randn(4, 6).bfloat16())
    sums = LayerSums(Subject.seen(losses, capture), plan, dict(model.named_parameters()))
    found = sums(graph, tuple(v.bfloat16() for v in columns(graph)))
    assert {x.dtype for x in found.values()} == {torch.float32}
    (v,) = (v.bfloat16().float() for v in columns(graph))
    torch.testing.assert_close(found["bias"], v.square().sum((0, 1)))
    assert F.relu(-found["weight"]).sum() == 0
