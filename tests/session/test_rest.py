"""A session that rests under its budget: steps are counted, the training is untouched, what comes after is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit import Cockpit, Run, attach
from cockpit.session.budget import Budget
from session.loops import batch, losses_of, net, sgd

REST = 5


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every session rest after its first step; the steps it then says it has rested for."""
    told: list[int] = []
    monkeypatch.setattr(Budget, "plan", lambda self, step, due: list(due) if step in (0, REST + 2) else [])
    monkeypatch.setattr(Budget, "rest", lambda self, step: REST if step == 2 else 0)
    monkeypatch.setattr(Budget, "rested", lambda self, steps: told.append(steps))
    return told


def advance(
    cockpit: Cockpit | None, model: nn.Module, opt: torch.optim.Optimizer, steps: range, way: str
) -> None:
    for t in steps:
        opt.zero_grad()
        losses = losses_of(model, *batch(t))
        if cockpit is None or way == "attached":
            losses.mean().backward()
        elif way == "backward":
            cockpit.backward(losses)
        else:
            with cockpit.watch(losses):
                losses.mean().backward()
        opt.step()


@pytest.mark.parametrize("way", ["backward", "watched", "attached"])
def test_steps_are_counted_and_the_next_ones_measured(way: str, tmp_path: Path, told: list[int]) -> None:
    model = net()
    opt = sgd(model)
    begin = attach if way == "attached" else Cockpit
    cockpit = begin(model, opt, quantities=["grad_norm"], run=tmp_path, budget=0.05)
    advance(cockpit, model, opt, range(4), way)
    assert cockpit.step == 4
    cockpit.log(mine=4.0)
    advance(cockpit, model, opt, range(4, 10), way)
    assert cockpit.step == 10
    assert told == [REST]
    cockpit.close()
    assert Run(tmp_path).series("grad_norm").steps.tolist() == [0, REST + 2]
    assert Run(tmp_path).series("mine").steps.tolist() == [4]
    other = net()
    advance(None, other, sgd(other), range(10), way)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_rest_that_is_broken_off(tmp_path: Path, told: list[int]) -> None:
    """By a checkpoint, from which a second session goes on, and by the end."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["grad_norm"], run=tmp_path / "one", budget=0.05) as cockpit:
        advance(cockpit, model, opt, range(4), "backward")
        state = cockpit.state_dict()
        assert told == [2]
        advance(cockpit, model, opt, range(4, 5), "backward")
        assert cockpit.step == 5
    with Cockpit(model, opt, quantities=["grad_norm"], run=tmp_path / "two", budget=0.05) as cockpit:
        cockpit.load_state_dict(state)
        advance(cockpit, model, opt, range(4, 9), "backward")
        assert cockpit.step == 9
    assert Run(tmp_path / "two").series("grad_norm").steps.tolist() == [REST + 2]
    with Cockpit(model, opt, quantities=["grad_norm"], run=tmp_path / "three", budget=0.05) as cockpit:
        advance(cockpit, model, opt, range(4), "backward")
    assert told == [2, 2], "also where the training ends in a rest"


def test_several_optimisers_never_rest(tmp_path: Path, told: list[int]) -> None:
    model = net()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))  # type: ignore[index]
    with Cockpit(model, [first, second], quantities=["grad_norm"], run=tmp_path, budget=0.05) as cockpit:
        for t in range(5):
            cockpit.backward(losses_of(model, *batch(t)))
            first.step()
            second.step()
        assert cockpit.step == 5
    assert told == []
