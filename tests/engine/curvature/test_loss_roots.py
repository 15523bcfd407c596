from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit.engine.curvature import loss_roots as module
from cockpit.engine.curvature.loss_graph import LossGraph, loss_hessian
from cockpit.engine.curvature.loss_kinds import root_of
from cockpit.engine.curvature.loss_roots import DenseRoot, Root, SeparateRoot, Signed, SoftmaxRoot, signed
from cockpit.errors import Gap

F64 = torch.float64


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def labels(*shape: int) -> Tensor:
    return torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(9))


def token_cross_entropy(f: Tensor) -> Tensor:
    return F.cross_entropy(f.transpose(1, 2), labels(4, 2), reduction="none").mean(1)


def masked_cross_entropy(f: Tensor) -> Tensor:
    y = labels(4, 2).clone()
    y[0] = y[2, 1] = -100
    return F.cross_entropy(f.transpose(1, 2), y, reduction="none", ignore_index=-100).sum(1)


def segmentation(f: Tensor) -> Tensor:
    return F.cross_entropy(f, labels(4, 2), reduction="none").mean(1)


def weighted_smoothed(f: Tensor) -> Tensor:
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=F64)
    return F.cross_entropy(f, labels(4), weight=weight, label_smoothing=0.1, reduction="none")


def by_hand(f: Tensor) -> Tensor:
    return -(f.exp() / f.exp().sum(-1, keepdim=True)).log().gather(1, labels(4)[:, None])[:, 0]


def squared(f: Tensor) -> Tensor:
    return (f - numbers(4, 3, seed=5)).square().mean(1)


def binary(f: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(f, (numbers(4, 3, seed=5) > 0).double(), reduction="none").sum(
        1
    )


def saddle(f: Tensor) -> Tensor:
    return f[:, 0] ** 2 - 3 * f[:, 1] ** 2 + f[:, 2]


def focal(f: Tensor) -> Tensor:
    ce = F.cross_entropy(f, labels(4), reduction="none")
    return (1 - (-ce).exp()) ** 2 * ce


def product_loss(f: Tensor) -> Tensor:
    return f[:, 0] * f[:, 1] * f[:, 2]


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], type[Root]]] = {
    "cross-entropy": (lambda f: F.cross_entropy(f, labels(4), reduction="none"), (4, 3), SoftmaxRoot),
    "tokens": (token_cross_entropy, (4, 2, 3), SoftmaxRoot),
    "masked tokens": (masked_cross_entropy, (4, 2, 3), SoftmaxRoot),
    "pixels": (segmentation, (4, 3, 2), SoftmaxRoot),
    "weighted, smoothed": (weighted_smoothed, (4, 3), SoftmaxRoot),
    "cross-entropy by hand": (by_hand, (4, 3), SoftmaxRoot),
    "time first": (lambda f: token_cross_entropy(f.transpose(0, 1)), (2, 4, 3), SoftmaxRoot),
    "flattened tokens": (lambda f: token_cross_entropy(f.reshape(4, 2, 3)), (8, 3), SoftmaxRoot),
    "squared": (squared, (4, 3), SeparateRoot),
    "binary": (binary, (4, 3), SeparateRoot),
    "saddle": (saddle, (4, 3), SeparateRoot),
    "focal": (focal, (4, 3), DenseRoot),
    "product": (product_loss, (4, 3), DenseRoot),
}


def matrices(graph: LossGraph, vectors: list[Signed]) -> Tensor:
    total = torch.zeros(graph.examples, graph.numbers, graph.numbers, dtype=F64)
    for sign, stacked in vectors:
        for vector in zip(*stacked, strict=True):
            rows = graph.rows(vector).double()
            total += sign * rows[:, :, None] * rows[:, None, :]
    return total


@pytest.mark.parametrize("case", CASES)
def test_columns_add_up_to_the_loss_hessians(case):
    losses, shape, kind = CASES[case]
    f = numbers(*shape).requires_grad_() * 1.5
    values = losses(f)
    graph = LossGraph(values, (f,))
    root = root_of(graph)
    assert type(root) is kind
    columns = list(root.columns())
    assert sum(len(stacked[0]) for _, stacked in columns) <= root.count
    torch.testing.assert_close(matrices(graph, columns), loss_hessian(values, (f,)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_draws_are_right_on_average(case):
    losses, shape, _ = CASES[case]
    f = numbers(*shape).requires_grad_() * 1.5
    graph = LossGraph(losses(f), (f,))
    root = root_of(graph)
    generator = torch.Generator().manual_seed(0)
    draws = 400
    found = matrices(graph, [v for _ in range(draws) for v in root.draw(generator)]) / draws
    expected = graph.dense()
    assert float((found - expected).abs().max()) < 0.25 * float(expected.abs().max())


def test_drawn_labels_have_the_predicted_frequencies():
    f = torch.tensor([[0.0, 1.0, 2.0]], dtype=F64, requires_grad=True).expand(5000, 3) * 1.0
    graph = LossGraph(F.cross_entropy(f, torch.zeros(5000, dtype=torch.long), reduction="none"), (f,))
    ((sign, ((v,),)),) = root_of(graph).draw(torch.Generator().manual_seed(0))
    p = f.detach().softmax(1)
    onehot = p - v
    torch.testing.assert_close(onehot.round(), onehot, rtol=0, atol=1e-12)
    assert sign == 1
    assert torch.equal(onehot.round().sum(1), torch.ones(5000, dtype=F64))
    assert float((onehot.mean(0) - p[0]).abs().max()) < 0.03


def test_a_masked_position_draws_nothing():
    f = numbers(4, 2, 3).requires_grad_() * 1.0
    graph = LossGraph(masked_cross_entropy(f), (f,))
    ((_, ((v,),)),) = root_of(graph).draw(torch.Generator())
    assert v[0].abs().sum() == v[2, 1].abs().sum() == 0
    assert v[1].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sharpness", [1.0, 30.0, 1000.0])
def test_confident_predictions_are_still_recognised(dtype, sharpness):
    f = (numbers(64, 10) * sharpness).to(dtype).requires_grad_() * 1.0
    y = torch.arange(64) % 10
    graph = LossGraph(F.cross_entropy(f.float(), y, reduction="none"), (f,))
    root = root_of(graph)
    assert isinstance(root, SoftmaxRoot)
    p = f.detach().double().softmax(1)
    exact = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(matrices(graph, list(root.columns())), exact, rtol=0, atol=tolerance)


def test_a_large_vocabulary_needs_no_matrix():
    f = numbers(2, 3, 400, dtype=torch.float32).requires_grad_() * 1.0
    y = torch.arange(6).reshape(2, 3)
    graph = LossGraph(F.cross_entropy(f.transpose(1, 2), y, reduction="none").mean(1), (f,))
    root = root_of(graph)
    assert isinstance(root, SoftmaxRoot)
    assert root.count == 1197
    torch.testing.assert_close(root.weights, torch.full((2, 3), 1 / 3), rtol=1e-4, atol=0)


def test_many_outputs_of_an_unknown_loss_are_a_gap():
    f = numbers(2, 600).requires_grad_() * 1.0
    graph = LossGraph(f.logsumexp(1) ** 2, (f,))
    with pytest.raises(Gap, match=r"^too_many_outputs: 600"):
        root_of(graph)


def test_two_outputs_share_one_root():
    w = numbers(4, 3).requires_grad_()
    a, b = w * 2, w.sin()
    graph = LossGraph(F.cross_entropy(a, labels(4), reduction="none") + b.square().sum(1), (a, b))
    root = root_of(graph)
    assert isinstance(root, DenseRoot)
    torch.testing.assert_close(matrices(graph, list(root.columns())), graph.dense(), rtol=1e-9, atol=1e-10)


def test_a_loss_without_curvature_has_no_columns():
    f = numbers(4, 3).requires_grad_() * 1.0
    graph = LossGraph((f - 0.1).abs().sum(1), (f,))
    assert list(root_of(graph).columns()) == []


def test_draws_come_from_the_private_generator_only():
    f = numbers(4, 3).requires_grad_() * 1.0
    root = root_of(LossGraph(squared(f), (f,)))
    before = torch.get_rng_state()
    ((_, (first,)),) = root.draw(torch.Generator().manual_seed(1))
    ((_, (again,)),) = root.draw(torch.Generator().manual_seed(1))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert math.isfinite(float(first.sum()))


@pytest.mark.parametrize("shape", [(3, 1), (7, 9), (64,), (2, 5, 13)])
@pytest.mark.parametrize("native", [True, False])
def test_signs_are_as_likely_and_the_same_without_kernels(shape, native, monkeypatch):
    sizes = torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(3))
    expected = [signed(sizes, torch.Generator().manual_seed(seed)) for seed in range(200)]
    if not native:
        monkeypatch.setattr(module, "negated", lambda x, bits: None)
        found = [signed(sizes, torch.Generator().manual_seed(seed)) for seed in range(200)]
        assert all(map(torch.equal, found, expected))
    assert all(torch.equal(x.abs(), sizes) for x in expected)
    mean = torch.stack([x.sign() for x in expected]).mean(0)
    assert float(mean.abs().max()) < 5 / 200**0.5
