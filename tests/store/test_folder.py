"""Where runs live: names become new dated folders, paths are taken as they are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cockpit.store.folder import run_folder

NOON = time.mktime((2026, 11, 15, 12, 30, 59, 0, 0, -1))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    return tmp_path


def test_a_name_becomes_a_dated_folder() -> None:
    assert run_folder("fmnist", NOON) == Path("cockpit_logs/20261115-123059-fmnist")
    assert run_folder(None, NOON) == Path("cockpit_logs/20261115-123059-run")
    assert Path("cockpit_logs/.gitignore").read_text() == "*\n"


def test_the_same_name_in_the_same_second_gets_a_number() -> None:
    found = [run_folder("fmnist", NOON).name for _ in range(3)]
    assert found == ["20261115-123059-fmnist", "20261115-123059-fmnist-2", "20261115-123059-fmnist-3"]


def test_the_environment_moves_the_logs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCKPIT_LOGS", str(here / "elsewhere"))
    assert run_folder("a", NOON) == here / "elsewhere" / "20261115-123059-a"


def test_paths_and_existing_folders_are_taken_as_they_are(here: Path) -> None:
    (here / "exists").mkdir()
    assert run_folder("exists", NOON) == Path("exists")
    assert run_folder("some/where", NOON) == Path("some/where")
    assert run_folder(Path("name"), NOON) == Path("name")
    assert run_folder("~/runs", NOON) == Path.home() / "runs"
    assert not (here / "some").exists()


def test_names_that_file_systems_refuse() -> None:
    assert run_folder('a:b?"c"', NOON).name == "20261115-123059-a-b--c-"
    assert run_folder("", NOON).name == "20261115-123059-run"
    assert len(run_folder("x" * 1000, NOON).name) < 150
    assert run_folder("größe", NOON).is_dir()


def test_logs_that_cannot_be_made_are_left_to_the_writer(here: Path) -> None:
    (here / "cockpit_logs").write_text("a file in the way")
    assert run_folder("a", NOON) == Path("cockpit_logs/20261115-123059-a")
