"""Watched trainings do what they say: they train as untracked ones, and say what they could not measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cockpit.bench.watched import IDLE, Training, Watched
from cockpit.store.run import Run


def losses(model: nn.Module) -> Tensor:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    out: Tensor = model(x).square().mean(1)
    return out


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    training = Watched(*parts(), losses, *request.param)
    yield training
    training.close()


def run_of(training: Watched) -> Run:
    training.settle()
    assert training.cockpit.run is not None
    return Run(training.cockpit.run)


@pytest.mark.parametrize("watched", [("economy",)], indirect=True)
def test_it_trains_like_the_untracked_one(watched: Watched) -> None:
    plain = Training(*parts(), losses)
    for training in (plain, watched):
        for _ in range(3):
            training.step()
        training.settle()
    for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert plain.gaps() == watched.gaps() == []


@pytest.mark.parametrize("watched", [("norm_test", 2)], indirect=True)
def test_one_quantity_at_its_interval(watched: Watched) -> None:
    for _ in range(4):
        watched.step()
    run = run_of(watched)
    assert run.series("norm_test").steps.tolist() == [0, 2]
    assert set(run.names()) <= {"norm_test", "learning_rate"}


@pytest.mark.parametrize("watched", [(IDLE,)], indirect=True)
def test_idle_measures_nothing(watched: Watched) -> None:
    watched.step()
    assert set(run_of(watched).names()) <= {"learning_rate"}


def test_gaps_are_told() -> None:
    training = Watched(*parts(), lambda model: losses(model)[:1], "norm_test")
    training.step()
    assert [gap.split(":")[0] for gap in training.gaps()] == ["norm_test"]
    training.close()


def test_nothing_is_left_behind() -> None:
    training = Watched(*parts(), losses, "loss")
    folder = Path(training.cockpit.run or "")
    assert folder.exists()
    training.close()
    assert not folder.exists()
