"""Products with the Hessian by hand, of models that are not recorded: only where they were compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cockpit import Cockpit, HessMaxEV, HessTrace, Quantity, Run
from cockpit.engine.curvature import curvature_tapes
from cockpit.engine.derivatives.gradient_graph import GradientGraph
from cockpit.engine.derivatives.lean import Found
from layer_check import filled, normal

FIRST = 5
"""The step after that at which both ways are compared."""


class Doubled(torch.autograd.Function):
    """An operation written in Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * g


class Custom(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = Doubled.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return found


class Checkpointed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return found


class Attending(nn.Linear):
    """Its gates are written in Python, too, but they are ours."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unflatten(1, (1, 2, -1))  # of one head
        return super().forward(F.scaled_dot_product_attention(tokens, tokens, tokens).flatten(1))


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product was made by hand; models that are not recorded, however small."""
    monkeypatch.setattr(curvature_tapes, "ON_CPU", 0)
    monkeypatch.setattr(curvature_tapes, "BY_HAND", 1)
    monkeypatch.setattr(curvature_tapes, "AN_OPERATION", 0)
    made: list[bool] = []
    derived = GradientGraph.derived

    def seen(self: GradientGraph, *args: Any, **more: Any) -> Found:
        made.append(self._hand)
        return derived(self, *args, **more)

    monkeypatch.setattr(GradientGraph, "derived", seen)
    return made


def train(
    folder: Path,
    second: nn.Linear,
    steps: int = 8,
    step: Callable[[int], None] = id,
    quantity: Quantity | None = None,
    fast: bool = True,
) -> list[float]:
    """Return the values of a quantity (the largest eigenvalue) in a training of two layers."""
    quantity = quantity or HessMaxEV()
    model = filled(nn.Sequential(nn.Linear(3, second.in_features), nn.Tanh(), second))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Cockpit(model, optimizer, quantities=[quantity], run=folder, fast=fast) as cockpit:
        for k in range(steps):
            optimizer.zero_grad()
            step(k)
            cockpit.backward(model(normal(6, 3, seed=k)).square().sum(1))
            optimizer.step()
    return [float(x) for x in Run(folder).series(quantity.name).values]


def test_products_are_made_by_hand_once_they_were_compared(tmp_path: Path, hands: list[bool]) -> None:
    values = train(tmp_path, nn.Linear(4, 2))
    assert len(values) == 8
    assert hands.count(True) == 1 + 2 * (8 - FIRST)  # the comparison, and two a step
    assert hands[-6:] == [True] * 6


def test_so_are_those_of_attention(tmp_path: Path, hands: list[bool]) -> None:
    values = train(tmp_path / "fast", Attending(4, 2))
    assert hands[-6:] == [True] * 6
    assert values == pytest.approx(train(tmp_path / "plain", Attending(4, 2), fast=False), rel=1e-9)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether products by hand fail from now on."""
    derived, found = GradientGraph.derived, [False]

    def broken(self: GradientGraph, *args: Any, **more: Any) -> Found:
        if found[0] and self._hand:
            raise RuntimeError("not this time")
        return derived(self, *args, **more)

    monkeypatch.setattr(GradientGraph, "derived", broken)
    return found


def test_so_are_those_of_random_vectors_alone(tmp_path: Path, hands: list[bool]) -> None:
    """With more parameters than a product each is made for, a trace takes one; no eigenvalue is asked for."""
    values = train(tmp_path / "fast", nn.Linear(400, 2), quantity=HessTrace())
    assert set(Run(tmp_path / "fast").series("hess_trace").status) == {"estimated: hutchinson"}
    assert hands.count(True) == 1 + (8 - FIRST)
    assert hands[-3:] == [True] * 3
    assert values == pytest.approx(
        train(tmp_path / "plain", nn.Linear(400, 2), quantity=HessTrace(), fast=False), rel=1e-9
    )


def test_of_random_vectors_too_a_failure_is_one_gap(
    tmp_path: Path, hands: list[bool], breaks: list[bool]
) -> None:
    values = train(
        tmp_path, nn.Linear(400, 2), 9, lambda k: breaks.__setitem__(0, k >= FIRST + 2), HessTrace()
    )
    assert [k for k, value in enumerate(values) if value != value] == [FIRST + 2]


@pytest.mark.parametrize("second", [Custom(4, 2), Checkpointed(4, 2)], ids=lambda m: type(m).__name__)
def test_who_is_not_served(second: nn.Linear, tmp_path: Path, hands: list[bool]) -> None:
    values = train(tmp_path, second)
    assert len(values) == 8
    assert not any(hands)


def test_many_small_operations_are_left_to_the_engine(
    tmp_path: Path, hands: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        curvature_tapes, "AN_OPERATION", 26
    )  # all parameters, of a model with several operations
    train(tmp_path, nn.Linear(4, 2))
    assert not any(hands)


def test_a_comparison_that_fails_is_the_end_of_it(
    tmp_path: Path, hands: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curvature_tapes, "agree", lambda found, truth: False)
    train(tmp_path, nn.Linear(4, 2))
    assert hands.count(True) == 1


def test_a_failure_later_on_is_one_gap(tmp_path: Path, hands: list[bool], breaks: list[bool]) -> None:
    values = train(tmp_path, nn.Linear(4, 2), 9, lambda k: breaks.__setitem__(0, k >= FIRST + 2))
    gaps = [k for k, value in enumerate(values) if value != value]
    assert gaps == [FIRST + 2]
    status = Run(tmp_path).series("hess_max_ev").status[FIRST + 2]
    assert status == "no_double_backward: not this time"
