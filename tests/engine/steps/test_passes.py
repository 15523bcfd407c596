"""Backward passes of a step: what else is differentiated, several of them, and parameters that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from engine.compared import BY_STEP, Watcher, gaps, lines, watcher
from session.loops import batch, differences, losses_of, net, plain, trained

__all__ = ["watcher"]  # a fixture


# -- the objective ---------------------------------------------------------------------------------------


def with_penalty(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    losses = losses_of(model, *batch(t))
    with cockpit.watch(losses):
        (losses.mean() + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()


def test_the_objective_may_hold_more_than_the_losses(tmp_path: Path, watcher: Watcher) -> None:
    """Moments of the examples are those of the examples; the step is the one taken."""
    watcher.same(with_penalty, quantities=[*BY_STEP, "hess_trace"])
    assert watcher.copies == [5, 5]
    found = trained(tmp_path / "one", with_penalty, 1)
    clean = trained(tmp_path / "two", plain, 1)
    of_examples = (
        "norm_test",
        "inner_test",
        "ortho_test",
        "mean_gsnr",
        "cabs",
        "early_stopping",
        "grad_hist1d",
    )
    for key in [k for k in clean if k[1] in of_examples]:
        assert differences({key: found[key]}, {key: clean[key]}, rtol=1e-9) == []
    assert found[0, "update_size", ""][0] != pytest.approx(clean[0, "update_size", ""][0], rel=1e-3)


def test_the_same_pass_watched_either_way(tmp_path: Path) -> None:
    def watched(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        with cockpit.watch(losses):
            losses.mean().backward()

    found = [trained(tmp_path / body.__name__, body, 4) for body in (plain, watched)]
    assert differences(*found, rtol=1e-9) == []


# -- micro-batches ---------------------------------------------------------------------------------------


def in_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    x, y = batch(t)
    for part in (slice(0, 2), slice(2, 6)):
        cockpit.backward(losses_of(model, x[part], y[part]))


def test_micro_batches(watcher: Watcher) -> None:
    watcher.same(in_two)
    assert watcher.copies == [5, 5]


def test_a_second_micro_batch_that_was_not_expected(watcher: Watcher) -> None:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        (in_two if t == 2 else plain)(cockpit, model, opt, t)

    found, expected = watcher.both(body, steps=6)
    late = ("alpha", "inner_test", "ortho_test")  # project on what was not known in the first micro-batch
    assert {name for _, name in lines(found, expected)} <= set(late)
    # the first micro-batch took itself for the whole step, and let go of the step before, on which alpha of 1 projects
    assert {key for key in lines(found, expected) if key[0] != 2} == {(1, "alpha")}
    assert {(1, "alpha"), (2, "alpha")} <= gaps(found, "needs_full_batch")
    assert found[2, "update_size", ""][1] == "ok"


def test_a_micro_batch_of_our_own_and_one_with_a_penalty(watcher: Watcher) -> None:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        cockpit.backward(losses_of(model, x[:2], y[:2]))
        losses = losses_of(model, x[2:], y[2:])
        with cockpit.watch(losses):
            (losses.mean() + 0.1 * sum(p.square().sum() for p in model.parameters())).backward()

    watcher.same(body)


# -- changes of the model --------------------------------------------------------------------------------


def test_freezing_and_thawing(watcher: Watcher) -> None:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        first = next(model.parameters())
        first.requires_grad_(t not in (2, 3))
        plain(cockpit, model, opt, t)

    watcher.same(body, steps=7)


def test_what_is_frozen_is_left_out_while_it_is(tmp_path: Path) -> None:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        next(model.parameters()).requires_grad_(t != 2)
        plain(cockpit, model, opt, t)

    found = trained(tmp_path, body, 4, quantities=["grad_norm", "update_size"])
    assert (2, "grad_norm", "0.weight") not in found
    assert (3, "grad_norm", "0.weight") in found


class Turns(nn.Module):
    """Uses its second layer in every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.calls = net(0), net(1), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        first: Tensor = self.always(x)
        return first + self.sometimes(x) if self.calls % 2 else first


def test_a_parameter_that_is_used_now_and_then(watcher: Watcher) -> None:
    watcher.same(model=Turns, steps=6)
