"""Loss functions are recognised once; what changes from batch to batch is computed anew each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.curvature import loss_kinds
from cockpit.engine.curvature.loss_graph import loss_hessian
from cockpit.engine.curvature.loss_kinds import Kinds
from cockpit.engine.curvature.loss_roots import DenseRoot, Root, SeparateRoot, SoftmaxRoot

F64 = torch.float64


def batch(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(*shape, dtype=F64, generator=g).requires_grad_() * 2
    return f, torch.randint(0, 3, (shape[0], *shape[2:]), generator=g)


def weighted(f: Tensor, y: Tensor) -> Tensor:
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=F64)
    return F.cross_entropy(f, y, weight=weight, reduction="none", ignore_index=2)


def soft(f: Tensor, y: Tensor) -> Tensor:
    target = F.one_hot(y, 3).double() * 0.7 + 0.1
    return F.cross_entropy(f, target, reduction="none") * (1 + y)


def pixels(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="none").mean(1)


def squared(f: Tensor, y: Tensor) -> Tensor:
    return (f - y[:, None]).square().mean(1) * (1 + y)


def focal(f: Tensor, y: Tensor) -> Tensor:
    ce = F.cross_entropy(f, y, reduction="none")
    return (1 - (-ce).exp()) ** 2 * ce


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], type[Root]]] = {
    "weights and masks": (weighted, (6, 3), SoftmaxRoot),
    "soft targets": (soft, (6, 3), SoftmaxRoot),
    "pixels": (pixels, (6, 3, 2), SoftmaxRoot),
    "squares": (squared, (6, 3), SeparateRoot),
    "focal": (focal, (6, 3), DenseRoot),
}


@pytest.mark.parametrize("case", CASES)
def test_every_batch_has_its_own_numbers(case: str) -> None:
    losses, shape, kind = CASES[case]
    kinds = Kinds()
    for seed in range(8):
        f, y = batch(seed, *shape)
        values = losses(f, y)
        root = kinds.root(values, (f,))
        assert type(root) is kind
        total = torch.zeros(6, root.graph.numbers, root.graph.numbers, dtype=F64)
        for sign, (stacked,) in root.columns():
            rows = torch.stack([root.graph.rows((v,)) for v in stacked])
            total += sign * torch.einsum("kni,knj->nij", rows, rows)
        torch.testing.assert_close(total, loss_hessian(values, (f,)), rtol=1e-8, atol=1e-9)


def test_a_known_kind_is_examined_at_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[int] = []
    original = loss_kinds.root_of
    kinds = Kinds()
    for seed in range(10):
        monkeypatch.setattr(
            loss_kinds, "root_of", lambda graph, seed=seed: examined.append(seed) or original(graph)
        )
        f, y = batch(seed, 6, 3)
        kinds.root(F.cross_entropy(f, y, reduction="none"), (f,))
    assert examined == [0, 1, 2, 4, 8]


def test_another_loss_function_is_another_kind() -> None:
    kinds = Kinds()
    for seed in range(4):
        f, y = batch(seed, 6, 3)
        kinds.root(F.cross_entropy(f, y, reduction="none"), (f,))
    f, y = batch(5, 6, 3)
    assert isinstance(kinds.root(squared(f, y), (f,)), SeparateRoot)
    assert isinstance(kinds.root(focal(f, y), (f,)), DenseRoot)


def test_weights_of_labels_are_exact_where_a_prediction_is_all_but_certain() -> None:
    logits = torch.tensor([[0.0, 30.0, 0.0], [0.0, 0.0, 50.0]], dtype=F64)
    p = logits.softmax(1)[:, None]
    kappa, y = torch.tensor([[0.3], [2.0]], dtype=F64), torch.tensor([1, 2])
    slope = kappa[..., None] * (p - F.one_hot(y, 3)[:, None])
    slope[0, 0, 1] = -kappa[0, 0] * (p[0, 0, 0] + p[0, 0, 2])
    torch.testing.assert_close(loss_kinds.label_weights(p, slope), kappa, rtol=1e-12, atol=0)


def test_probes_of_many_positions_are_as_irregular_as_those_of_few() -> None:
    """Positions times classes are more than single precision counts."""
    probe = loss_kinds._irregular(torch.empty(1, 1, 1).expand(2**10, 2**10, 2**15), 2)
    assert probe.shape == (2**10, 2**10, 2**15)
    last = probe[-1, -1]
    assert float(last.double().std()) == pytest.approx(3**-0.5, rel=0.02)
    assert len(last.unique()) > 2**12
    assert torch.equal(loss_kinds._irregular(torch.empty(4, 5, 6), 1)[0, :, 0], last[:5])


@pytest.mark.parametrize(
    "settings", [{}, {"ignore_index": 1}, {"weight": torch.tensor([0.5, 1.0, 3.0], dtype=F64)}], ids=str
)
def test_weights_read_off_the_graph_are_those_of_the_gradient(settings: dict[str, Any]) -> None:
    kinds = Kinds()
    for seed in range(6):
        f, y = batch(seed, 6, 3)
        root = kinds.root(F.cross_entropy(f, y, reduction="none", **settings), (f,))
        assert isinstance(root, SoftmaxRoot)
        slope = root.graph.slope()[0][:, None]
        expected = loss_kinds.label_weights(root.probabilities, slope)
        torch.testing.assert_close(root.weights, expected, rtol=1e-12, atol=0)


def test_a_multiple_of_a_plain_loss_is_not_plain() -> None:
    f, y = batch(0, 6, 3)
    kinds = Kinds()
    for _ in range(4):
        root = kinds.root(F.nll_loss(2 * F.log_softmax(f, 1), y, reduction="none"), (f,))
        assert isinstance(root, SoftmaxRoot)
        torch.testing.assert_close(root.weights, torch.full((6, 1), 2, dtype=F64), rtol=1e-12, atol=0)
