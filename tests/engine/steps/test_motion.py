"""Plain gradient descent: the step is known from ``.grad``. Of other optimisers it is measured, or read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.presets import ECONOMY
from engine.compared import Watcher, lines, watcher
from session.loops import (
    batch,
    differences,
    individual_gradients,
    losses_of,
    net,
    plain,
    records,
    sgd,
    trained,
)

__all__ = ["watcher"]  # a fixture


# -- known from the gradient ----------------------------------------------------------------------------


def test_the_update_is_known_without_a_copy_of_the_parameters(watcher: Watcher) -> None:
    watcher.same()
    assert watcher.copies == [1, 5], "only the first step is measured, to see what kind it is"


def test_values_are_those_of_the_step_taken(tmp_path: Path) -> None:
    """Against individual gradients, made here: the step's size, and slopes at both of its ends."""
    means: list[dict[str, Tensor]] = []

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        rows = individual_gradients(losses, list(model.parameters()))
        means.append({n: g.mean(0) for (n, _), g in zip(model.named_parameters(), rows, strict=True)})
        cockpit.backward(losses)

    found = trained(tmp_path, body, 4, quantities=["alpha", "update_size"])
    for t, here in enumerate(means):
        for name, g in here.items():
            assert found[t, "update_size", name][0] == pytest.approx(0.1 * float(g.norm()), rel=1e-9)
            if t < 3:  # the last step is not followed
                ratio = -float((means[t + 1][name] * g).sum() / g.square().sum())
                assert found[t, "alpha", name][0] == pytest.approx(ratio, rel=1e-9)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, second = model[0].parameters(), model[2].parameters()  # type: ignore[index]
    return torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.02}])


def standing(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def tensor_rate(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))


def all_at_once(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)


@pytest.mark.parametrize(
    "optimizer", [two_groups, standing, tensor_rate, all_at_once], ids=lambda f: f.__name__
)
def test_rates_of_all_kinds(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], watcher: Watcher
) -> None:
    watcher.same(optimizer=optimizer)
    assert watcher.copies[0] == 1


@pytest.mark.parametrize("cleared", [True, False])
def test_parameters_that_no_optimiser_moves(cleared: bool, watcher: Watcher) -> None:
    """Unless somebody clears them, their gradients add up from step to step."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        if cleared:
            model.zero_grad()
        plain(cockpit, model, opt, t)

    watcher.same(body, optimizer=lambda m: torch.optim.SGD(m[2].parameters(), lr=0.1))
    assert watcher.copies[0] == (1 if cleared else 5)


@pytest.mark.parametrize("between", [False, True], ids=["after the step", "between backward and step"])
def test_a_learning_rate_that_changes(between: bool, watcher: Watcher) -> None:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        if not between:
            opt.param_groups[0]["lr"] = 0.1 / (t + 1)
        plain(cockpit, model, opt, t)
        if between:
            opt.param_groups[0]["lr"] = 0.1 / (t + 1)

    watcher.same(body)
    assert watcher.copies[0] == 1


def test_schedules_that_skip_steps(tmp_path: Path) -> None:
    found = [
        trained(tmp_path / str(fast), plain, 7, config="economy", when=lambda t: t % 3 != 1, fast=fast)
        for fast in (True, False)
    ]
    assert differences(*found, rtol=1e-9) == []
    assert {t for t, name, _ in found[0] if name == "update_size"} == {0, 2, 3, 5, 6}


# -- another optimiser ----------------------------------------------------------------------------------


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def decay(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)


def upwards(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("optimizer", [decay, upwards], ids=lambda f: f.__name__)
def test_other_optimisers_are_measured(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], watcher: Watcher
) -> None:
    watcher.same(optimizer=optimizer)
    assert watcher.copies == [5, 5]


@pytest.mark.parametrize("optimizer", [momentum, adam], ids=lambda f: f.__name__)
def test_steps_of_others_are_read_from_their_state(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], watcher: Watcher
) -> None:
    watcher.same(optimizer=optimizer)
    assert watcher.copies == [0, 5], "in the plain way parameters are compared"


def test_momentum_that_is_switched_on_in_the_middle(watcher: Watcher) -> None:
    """The step for which the plain one was expected is not known; the next one is."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        plain(cockpit, model, opt, t)
        if t == 2:
            opt.param_groups[0]["momentum"] = 0.9

    found, expected = watcher.both(body)
    assert lines(found, expected) == {(2, "alpha"), (2, "update_size")}
    assert not any(value == value for value, _ in (found[2, "alpha", ""], found[2, "update_size", ""]))


def test_an_optimiser_derived_from_sgd(watcher: Watcher) -> None:
    class Signs(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad.sign())

    watcher.same(optimizer=lambda m: Signs(m.parameters(), lr=0.01))


# -- the last step, in a checkpoint ---------------------------------------------------------------------


def test_checkpoints_in_the_middle(tmp_path: Path) -> None:
    found = []
    for resumed in (False, True):
        folder, model = tmp_path / str(resumed), net()
        opt = sgd(model)
        cockpit = Cockpit(model, opt, config="economy", run=folder)
        for t in range(6):
            opt.zero_grad()
            plain(cockpit, model, opt, t)
            opt.step()
            if t == 3 and resumed:
                state = cockpit.state_dict()
                cockpit.close()
                cockpit = Cockpit(model, opt, config="economy", run=folder)
                cockpit.load_state_dict(state)
        cockpit.close()
        found.append(records(folder))
    assert differences(found[1], found[0], rtol=1e-9) == []


def test_a_checkpoint_after_the_gradients_were_zeroed_in_place(tmp_path: Path) -> None:
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=list(ECONOMY), run=tmp_path) as cockpit:
        for t in range(4):
            before = [p.detach().clone() for p in model.parameters()]
            opt.zero_grad()
            plain(cockpit, model, opt, t)
            opt.step()
        opt.zero_grad(set_to_none=False)
        saved = cockpit.state_dict()["engine"]["last_update"]
    for (name, p), old in zip(model.named_parameters(), before, strict=True):
        if name in saved:  # better none than a wrong one
            vector, factor = saved[name]
            torch.testing.assert_close(vector * factor, p.detach() - old)
