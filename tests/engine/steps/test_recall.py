"""The step before: projected on, let go of, replaced; layers let go of what they saw as soon as it has been used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Outer
from cockpit.engine.steps.factored import Factored
from cockpit.engine.steps.recall import Recall
from layer_check import normal


def gradients(seed: int) -> ExampleGradients:
    shape = torch.Size((20, 30))
    part = Outer(normal(4, 1, 1, 30, seed=seed), normal(4, 1, 1, 20, seed=seed + 50), shape)
    return ExampleGradients("weight", torch.zeros(shape, dtype=torch.float64), (part,))


def factors(seed: int) -> Factored:
    found = Factored.of(gradients(seed), [])
    assert found is not None
    return found


def test_factors_are_let_go_when_they_were_projected_on_for_the_last_time() -> None:
    before, now = factors(0), gradients(1)
    expected, seen = before.dot(now) * -0.5, weakref.ref(before)
    recall = Recall({"weight": (before, -0.5)}, follows=True)
    del before
    recall.project(now)
    assert seen() is None
    found = recall.projected("weight")
    assert found is not None
    torch.testing.assert_close(found, expected)
    assert recall.projected("weight") is None, "it is handed out once"


@pytest.mark.parametrize(("follows", "whole"), [(False, True), (True, False)])
def test_factors_that_somebody_still_needs_are_kept(follows: bool, whole: bool) -> None:
    last = {"weight": (factors(0), 1.0)}
    Recall(dict(last), follows).project(gradients(1), whole)  # type: ignore[arg-type]
    recall = Recall(last, follows)  # type: ignore[arg-type]
    recall.project(gradients(1), whole)
    assert "weight" in last
    assert recall.direction("weight") is None, "factors are no vector"


def test_this_step_takes_the_place_of_the_one_before() -> None:
    vector = normal(20, 30)
    last = {"weight": (vector, 2.0)}
    recall = Recall(last, follows=True)  # type: ignore[arg-type]
    assert recall.direction("weight") == (vector, 2.0)
    recall.follow(gradients(1), [], reduced=False)
    assert "weight" in last, "it waits with others, which will be projected together"
    recall.follow(gradients(1), [], reduced=True)
    assert not last
    assert set(recall.factored) == {"weight"}


def test_who_is_not_alone_keeps_nothing() -> None:
    recall = Recall({}, follows=False)
    recall.follow(gradients(1), [], reduced=True)
    assert not recall.factored


class Noted(nn.Module):
    """A layer that takes note of what it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        self.made.append(weakref.ref(y.untyped_storage()))  # type: ignore[arg-type]
        return y


def watched(folder: Path, quantity: str, after: Callable[[Noted], None]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noted = Noted()
        model = nn.Sequential(nn.Linear(3, 50), noted, nn.Linear(50, 2)).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, opt, quantities=[quantity], run=folder, fast=False) as cockpit:
        for seed in range(3):
            losses = model(normal(20, 3, seed=seed)).square().sum(1)
            cockpit.backward(losses)
            gc.collect()
            after(noted)  # the losses are still there
            opt.step()
            opt.zero_grad()


def test_activations_do_not_live_as_long_as_the_losses(tmp_path: Path) -> None:
    alive: list[int] = []
    watched(
        tmp_path / "run", "norm_test", lambda noted: alive.append(sum(m() is not None for m in noted.made))
    )
    assert alive == [0, 0, 0]
