"""Resuming: an interrupted training continues its run as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cockpit import Alpha, Cockpit, GradAbsMax, GradHist1d, HessMaxEV, HessTrace, InnerTest, Run, every
from cockpit.engine.scripts.recorder import Recorder
from session.loops import batch, differences, events, everything, losses_of, net, records, sgd


def advance(
    cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, steps: range, pieces: int = 1
) -> None:
    for t in steps:
        opt.zero_grad()
        x, y = batch(t)
        for xs, ys in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            losses = losses_of(model, xs, ys)
            with cockpit.watch(losses):
                (losses.sum() / len(x)).backward()
        opt.step()


def exactly(found: dict[Any, Any], expected: dict[Any, Any]) -> list[str]:
    """Every series, bit by bit, with its full status."""
    both = [k for k in expected if k in found]
    wrong = differences(found, expected, rtol=0.0, atol=0.0)
    return wrong + [f"{k}: {found[k][1]} {expected[k][1]}" for k in both if found[k][1] != expected[k][1]]


def interrupted(
    folder: Path,
    stop: int,
    total: int,
    quantities: Any,
    pieces: int = 1,
    lost: int = 0,
    momentum: float = 0.9,
) -> None:
    """Train, save at ``stop``, go on for ``lost`` steps that are thrown away, and resume in fresh objects."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    cockpit = Cockpit(model, opt, quantities=quantities(), run=folder)
    advance(cockpit, model, opt, range(stop), pieces)
    state = {"model": model.state_dict(), "opt": opt.state_dict(), "cockpit": cockpit.state_dict()}
    torch.save(state, folder.with_suffix(".pt"))
    advance(cockpit, model, opt, range(stop, stop + lost), pieces)
    cockpit.close()

    loaded = torch.load(folder.with_suffix(".pt"), weights_only=True)
    model = net(seed=5)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model.load_state_dict(loaded["model"])
    opt.load_state_dict(loaded["opt"])
    with Cockpit(model, opt, quantities=quantities(), run=folder) as cockpit:
        cockpit.load_state_dict(loaded["cockpit"])
        assert cockpit.step == stop
        advance(cockpit, model, opt, range(stop, total), pieces)


def whole(folder: Path, total: int, quantities: Any, pieces: int = 1) -> None:
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Cockpit(model, opt, quantities=quantities(), run=folder) as cockpit:
        advance(cockpit, model, opt, range(total), pieces)


@pytest.fixture
def _ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing recorded: a replay, which a resumed training begins later, rounds in another way."""
    monkeypatch.setattr(Recorder, "serves", lambda device: False)


@pytest.mark.usefixtures("_ordinary")
@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("pieces", [1, 2])
def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path, stop: int, lost: int, pieces: int):
    whole(tmp_path / "whole", 6, everything, pieces)
    interrupted(tmp_path / "parts", stop, 6, everything, pieces, lost)
    assert not exactly(records(tmp_path / "parts"), records(tmp_path / "whole"))
    assert (stop, "resumed") in events(tmp_path / "parts")


@pytest.mark.parametrize("stop", [2, 7])
def test_a_resumed_run_that_is_recorded(tmp_path: Path, stop: int):
    whole(tmp_path / "whole", 12, everything)
    interrupted(tmp_path / "parts", stop, 12, everything)
    found, expected = records(tmp_path / "parts"), records(tmp_path / "whole")
    assert differences(found, expected, rtol=1e-9) == []


def test_adapted_bins_and_sparse_schedules_survive(tmp_path: Path):
    def quantities() -> list[Any]:
        return [
            GradHist1d(adapt=GradAbsMax(padding=0.2)),
            Alpha(when=every(2)),
            InnerTest(when=every(3)),
            HessMaxEV(when=every(2)),
        ]

    whole(tmp_path / "whole", 7, quantities)
    interrupted(tmp_path / "parts", 3, 7, quantities)
    found, expected = records(tmp_path / "parts"), records(tmp_path / "whole")
    assert not exactly(found, expected)
    assert (found[5, "grad_hist1d", ""][0].edges == expected[5, "grad_hist1d", ""][0].edges).all()


def test_monte_carlo_curvature_goes_on_with_its_own_random_numbers(tmp_path: Path):
    def quantities() -> list[Any]:
        return [HessTrace("diag_ggn_mc")]

    whole(tmp_path / "whole", 5, quantities)
    interrupted(tmp_path / "parts", 2, 5, quantities)
    assert not exactly(records(tmp_path / "parts"), records(tmp_path / "whole"))


def test_state_before_the_first_step(tmp_path: Path):
    whole(tmp_path / "whole", 3, everything)
    interrupted(tmp_path / "parts", 0, 3, everything)
    assert not exactly(records(tmp_path / "parts"), records(tmp_path / "whole"))


def test_state_is_not_changed_by_further_steps(tmp_path: Path):
    """A state in memory is a snapshot, like a state in a file."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        advance(cockpit, model, opt, range(2))
        state = cockpit.state_dict()
        torch.save(state, tmp_path / "before.pt")
        advance(cockpit, model, opt, range(2, 4))
        torch.save(state, tmp_path / "after.pt")
    before, after = (torch.load(tmp_path / f"{k}.pt", weights_only=True) for k in ("before", "after"))
    assert flat(before) == flat(after)


def flat(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {k: flat(v) for k, v in state.items()}
    return [flat(v) for v in state] if isinstance(state, list | tuple) else state


def test_start_at_step_1000(tmp_path: Path):
    """Only the number is known: distance starts here, and what needs a step before has no value before."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r", step=1000) as cockpit:
        advance(cockpit, model, opt, range(1000, 1003))
    found = records(tmp_path / "r")
    assert {t for t, name, _ in found if name == "loss"} == {1000, 1001, 1002}
    assert {t for t, name, _ in found if name == "alpha"} == {1000, 1001}
    assert found[1000, "distance", ""] == (0.0, "ok")
    assert not [e for e in events(tmp_path / "r") if e[1] == "gap"]
    assert Run(tmp_path / "r").series("loss").steps.tolist() == [1000, 1001, 1002]


def test_continue_a_run_by_step(tmp_path: Path):
    """Without a state: what was recorded at or beyond the step is superseded, the rest stays."""
    for first, steps in ((0, range(5)), (3, range(3, 6))):
        model = net()
        opt = sgd(model)
        with Cockpit(model, opt, quantities=["loss", "grad_norm"], run=tmp_path / "r", step=first) as cockpit:
            advance(cockpit, model, opt, steps)
    series = Run(tmp_path / "r").series("loss")
    assert series.steps.tolist() == [0, 1, 2, 3, 4, 5]
    expected = float(losses_of(net(), *batch(3)).mean().detach())
    assert series.values[3] == pytest.approx(expected, rel=1e-12)


def test_quantities_that_come_or_go(tmp_path: Path):
    """A state from a session with other quantities is taken as far as it goes."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["loss", "alpha", "distance"], run=tmp_path / "a") as cockpit:
        advance(cockpit, model, opt, range(2))
        state = cockpit.state_dict()
    with Cockpit(
        model, opt, quantities=["distance", "norm_test", "grad_norm"], run=tmp_path / "b"
    ) as cockpit:
        cockpit.load_state_dict(state)
        advance(cockpit, model, opt, range(2, 4))
    found = records(tmp_path / "b")
    assert found[2, "distance", ""][0] > 0
    assert found[3, "norm_test", ""][1] == "ok"
