"""Environments: who is chosen, what is on the path, and what happens where nothing may be installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import cockpit.presets
from benchmarks import environments
from benchmarks.environments import (
    ALL,
    ORIGINALS,
    PRESETS,
    QUANTITIES,
    ROOT,
    CannotMakeError,
    Environment,
    command,
)
from benchmarks.run import selected
from cockpit.naming import snake_case
from cockpit.registry import quantity_classes

PEER = Environment("peer", ("left-pad==1", "other"), singles=("norms",))


def silent(text: str) -> None:
    pass


def test_every_quantity_takes_part() -> None:
    assert set(QUANTITIES) == set(quantity_classes())
    assert tuple(cockpit.presets.PRESETS) == PRESETS
    assert [snake_case(name) for name in ORIGINALS] == list(QUANTITIES)


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        ([], 22),
        (["cockpit"], 22),
        (["cockpit/economy"], 1),
        (["*/full", "cockpit/grad_*"], 4),
        (["original"], 0),
    ],
)
def test_patterns_choose(patterns: list[str], count: int) -> None:
    assert len(selected(ALL[0], patterns)) == count


def test_nothing_is_installed_without_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    with pytest.raises(CannotMakeError, match="not installed on this machine"):
        command(PEER, install=False, say=silent)


def test_a_peer_is_installed_once_and_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def pip(words: list[str], **_: object) -> SimpleNamespace:
        calls.append(words)
        (tmp_path / "peer").mkdir(exist_ok=True)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(subprocess, "run", pip)
    for _ in range(2):
        words, variables = command(PEER, install=True, say=silent)
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert calls[0][-2:] == ["left-pad==1", "other"]
    assert variables["PYTHONPATH"] == os.pathsep.join([str(ROOT), str(tmp_path / "peer")])
    assert words[-1] == str(environments.compiled_folder())


def test_a_failed_installation_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: No matching distribution\n")
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(CannotMakeError, match="could not be installed: ERROR: No matching"):
        command(PEER, install=True, say=silent)


def test_ours_sees_the_package_of_this_checkout() -> None:
    _, variables = command(ALL[0], install=False, say=silent)
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(ROOT / "src")]
