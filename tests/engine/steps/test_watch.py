"""Passes that the user makes, replayed: attached, watched without losses, or with losses and whatever weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cockpit import Run
from cockpit.engine.tapes import tapes as tapes_module
from cockpit.engine.tapes.tape import Tape
from cockpit.engine.tapes.tapes import REPEATS
from engine.replayed import MODELS, Training, apart, batch, compare, device, losses_of, replays
from session.loops import records

__all__ = ["device", "replays"]  # fixtures


@pytest.mark.parametrize("entry", ["watched", "blind", "attached"])
@pytest.mark.parametrize("model", MODELS)
def test_passes_of_the_user(model: str, entry: str, tmp_path: Path, replays: list[Tape]) -> None:
    found = compare(tmp_path, model, "sgd", entry=entry)
    assert len(replays) >= 8 - REPEATS - 2
    assert not replays[0].asked.own
    assert found[6, "norm_test", ""][0] > 0


def _sometimes_weighted(losses: Tensor, step: int) -> Tensor:
    if step in (6, 7):
        return (losses * torch.arange(len(losses), device=losses.device)).mean()  # the first does not count
    return losses.sum() if step in (12, 13) else losses.mean()


@pytest.mark.parametrize(
    "objective",
    [lambda losses, step: 0.3 * losses.sum(), _sometimes_weighted],
    ids=["scaled", "sometimes weighted"],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weights(
    optimizer: str, objective: Any, tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording is of one weight; with others a step goes the ordinary way."""
    monkeypatch.setattr(Training, "objective", staticmethod(objective))
    compare(tmp_path, "conv", optimizer, entry="watched", runs={"sizes": [(8,)] * 16})
    assert len(replays) >= 3


def test_weights_that_leave_the_recorded_way(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no part of the recording was begun with other weights: the step is lost, which is said."""
    monkeypatch.setattr(Training, "objective", staticmethod(_sometimes_weighted))
    runs = {"sizes": [(8,)] * 16}
    found = Training(tmp_path / "replayed", "replayed", "deep", entry="watched").run(**runs)
    expected = Training(tmp_path / "eager", "eager", "deep", entry="watched").run(**runs)
    assert replays
    lost = {6, 12}
    assert not any(step in lost and name == "norm_test" for step, name, _ in found)
    near = {step + k for step in lost for k in (-1, 0, 1)}  # alpha takes two steps
    kept = {key: value for key, value in found.items() if key[0] not in near}
    assert apart(kept, {key: value for key, value in expected.items() if key[0] not in near}) == []
    assert any("weights of the examples" in event.text for event in Run(tmp_path / "replayed").events())


def test_an_objective_of_which_losses_are_only_a_part(tmp_path: Path, replays: list[Tape]) -> None:
    """What a penalty adds to ``.grad`` is no gradient of an example."""

    def penalised(training: Training) -> None:
        training.opt.zero_grad()
        x, y = batch(training.t, 8)
        penalty = sum(p.square().sum() for p in training.model.parameters())
        (losses_of(training.model, x, y).mean() + 0.1 * penalty).backward()
        training.opt.step()
        training.t += 1

    found = {}
    for way in ("replayed", "plain"):
        training = Training(tmp_path / way, way, entry="attached")
        for _ in range(8):
            penalised(training)
        assert training.cockpit is not None
        training.cockpit.close()
        found[way] = records(tmp_path / way)
    assert replays
    assert apart(found["replayed"], found["plain"]) == []
    assert found["replayed"][6, "norm_test", ""] != found["replayed"][6, "grad_norm", ""]


def test_kinds_that_never_come_again_are_forgotten(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes_module, "SEEN", 4)
    monkeypatch.setattr(Training, "objective", staticmethod(lambda losses, step: losses.sum() / (50 + step)))
    training = Training(tmp_path, quantities=["norm_test", "loss"], entry="watched")
    assert training.cockpit is not None
    for _ in range(12):
        training.step()
        assert len(training.cockpit._engine.passes.watch.tapes._counts) <= 4
    training.cockpit.close()
    assert not replays
