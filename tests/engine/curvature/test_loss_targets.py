"""Weights and probabilities that the nodes of a cross-entropy tell are those of its Hessian."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.curvature import loss_kinds
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.loss_kinds import Kinds, root_of
from cockpit.engine.curvature.loss_roots import SoftmaxRoot
from cockpit.engine.curvature.loss_targets import Targets

F64 = torch.float64


def problem(*shape: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, dtype=F64, generator=g).to(dtype).requires_grad_()
    return x * 2, torch.randint(0, shape[-1], shape[:-1], generator=g)


def plain(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="none")


def tokens(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def masked(f: Tensor, y: Tensor) -> Tensor:
    return (
        F.cross_entropy(f.flatten(0, 1), y.flatten(), reduction="none", ignore_index=1).view(y.shape).sum(1)
    )


def weighted(f: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(f.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return (each * torch.linspace(0, 1, y.numel(), dtype=each.dtype).view(y.shape)).sum(1)


def widened(f: Tensor, y: Tensor) -> Tensor:
    return tokens(f.float(), y)


SERVED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], torch.dtype]] = {
    "plain": (plain, (6, 3), F64),
    "tokens": (tokens, (6, 4, 3), F64),
    "masked": (masked, (6, 4, 3), F64),
    "weighted": (weighted, (6, 4, 3), F64),
    "widened": (widened, (6, 4, 3), torch.bfloat16),
}


@pytest.mark.parametrize("case", SERVED)
def test_what_they_tell_is_that_of_the_hessian(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, shape, dtype = SERVED[case]
    f, y = problem(*shape, dtype=dtype)
    values = losses(f, y)
    expected = root_of(LossGraph(values, (f,)))
    assert isinstance(expected, SoftmaxRoot)
    kinds = Kinds()
    for _ in range(3):
        kinds.root(values, (f,))
    monkeypatch.setattr(LossGraph, "product", None)  # nothing is learnt by acting
    monkeypatch.setattr(loss_kinds, "label_weights", None)
    found = kinds.root(values, (f,))
    assert isinstance(found, SoftmaxRoot)
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == F64 else {"rtol": 0.02, "atol": 1e-3}
    torch.testing.assert_close(found.probabilities.to(F64), expected.probabilities.to(F64), **close)
    torch.testing.assert_close(found.weights.to(F64), expected.weights.to(F64), **close)


def turned(f: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(f.transpose(0, 1).flatten(0, 1), y.T.flatten(), reduction="none")
    return each.view(y.T.shape).mean(0)


def scaled(f: Tensor, y: Tensor) -> Tensor:
    return tokens(2 * f, y)


def by_class(f: Tensor, y: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    return F.cross_entropy(f.flatten(0, 1), y.flatten(), weight, reduction="none").view(y.shape).mean(1)


def twice(f: Tensor, y: Tensor) -> Tensor:
    return tokens(f, y) + tokens(f, (y + 1) % 3)


@pytest.mark.parametrize("losses", [turned, scaled, by_class, twice])
def test_others_are_left_alone(losses: Callable[[Tensor, Tensor], Tensor]) -> None:
    f, y = problem(6, 4, 3)
    assert Targets.of(LossGraph(losses(f, y), (f,)), 2) is None


def test_classes_in_the_middle_are_left_alone() -> None:
    f, y = problem(6, 4, 3)
    pixels = F.cross_entropy(f, y[:, :3] % 4, reduction="none").mean(1)
    assert Targets.of(LossGraph(pixels, (f,)), 1) is None
