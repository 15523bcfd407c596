"""Passes cut into segments, and calls that are no part of a recording: the numbers of the ordinary way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cockpit import Run
from cockpit.engine.seeing.use import Use
from cockpit.engine.tapes import tapes as tapes_module
from cockpit.engine.tapes.replay import Replay
from cockpit.engine.tapes.tape import Tape
from cockpit.engine.tapes.tapes import REPEATS
from cockpit.presets import ECONOMY
from engine.replayed import (
    FIRST_ORDER,
    OPTIMIZERS,
    Training,
    apart,
    compare,
    device,
    replays,
    same_with_and_without,
)

__all__ = ["device", "replays"]  # fixtures


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small steps are cut into segments."""
    monkeypatch.setattr(tapes_module, "SMALL", 1)
    monkeypatch.setattr(tapes_module, "_most_on_cpu", lambda memory, fixed: 2**40)


@pytest.mark.parametrize(("memory", "segments"), [(10**9, 1), (32 * 1024, 4)])
@pytest.mark.parametrize(
    "quantities", [FIRST_ORDER, [*ECONOMY, "hess_trace", "tic_diag"]], ids=["first", "curved"]
)
@pytest.mark.usefixtures("cut")
def test_segments_of_a_plain_step(
    memory: int, segments: int, quantities: list[str], tmp_path: Path, replays: list[Tape]
) -> None:
    compare(tmp_path, "deep", "sgd", memory=memory, quantities=quantities)
    assert len(replays) >= 8 - REPEATS - 2
    assert replays[0].cut
    assert replays[0].loose == {"twice.weight", "twice.bias", "shift"}
    assert len(replays[0].segments) >= segments


@pytest.mark.parametrize("entry", ["watched", "blind", "attached"])
@pytest.mark.usefixtures("cut")
def test_segments_of_passes_of_the_user(entry: str, tmp_path: Path, replays: list[Tape]) -> None:
    compare(tmp_path, "deep", "sgd", memory=10 * 1024, entry=entry)
    assert len(replays) >= 8 - REPEATS - 2
    assert replays[0].cut


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.usefixtures("cut")
def test_segments_keep_nothing_until_the_optimiser_has_moved(
    optimizer: str, tmp_path: Path, replays: list[Tape]
) -> None:
    found = compare(tmp_path, "deep", optimizer, memory=5 * 1024)
    assert replays
    assert replays[0].cut
    assert replays[0].loose > {"twice.weight", "twice.bias", "shift"}, "the largest calls as well"
    assert found[7, "update_size", ""][1] == "ok"
    assert found[6, "alpha", ""][1].startswith("too_large")


def test_loose_calls_of_a_whole_step(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cockpit.engine.tapes.recording.Recording._is_loose",
        lambda self, use, names, size: use.name == "into",
    )
    for optimizer in OPTIMIZERS:
        found = compare(tmp_path / optimizer, "deep", optimizer)
        assert replays[-1].loose == {"into.weight", "into.bias", "shift"}
        assert found[6, "alpha", ""][0] == found[6, "alpha", ""][0]


@pytest.mark.usefixtures("cut")
def test_segments_leave_the_training_alone(tmp_path: Path, replays: list[Tape]) -> None:
    same_with_and_without(tmp_path, "deep", "adam", memory=32 * 1024)
    assert replays


@pytest.mark.usefixtures("cut")
def test_a_pass_that_leaves_the_recorded_way(
    tmp_path: Path, replays: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step is lost, which is said; then the ordinary way."""
    settings: dict[str, Any] = {"model": "deep", "memory": 32 * 1024}
    expected = Training(tmp_path / "eager", "eager", **settings).run([(8,)] * 10)
    segment_of, calls = Replay._segment_of, 0

    def astray(self: Replay, use: Use) -> int | None:
        nonlocal calls
        calls += 1
        if calls == 10:
            raise RuntimeError("another way")
        return segment_of(self, use)

    monkeypatch.setattr(Replay, "_segment_of", astray)
    training = Training(tmp_path / "replayed", **settings)
    found = training.run([(8,)] * 10)
    assert len(replays) == 1
    lost = REPEATS + 3
    assert (lost, "norm_test", "") not in found
    kept = {key: value for key, value in found.items() if key[0] not in (lost - 1, lost, lost + 1)}
    assert apart(kept, {key: value for key, value in expected.items() if key in kept}) == []
    assert {step for step, *_ in kept} == {step for step, *_ in expected} - {lost - 1, lost, lost + 1}
    assert any("another way" in event.text for event in Run(tmp_path / "replayed").events())
