"""The runs that are shown: found by themselves, named by ids, and none that lies outside."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from cockpit.errors import CockpitError
from cockpit.store.record import Record
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from cockpit.web import library as module
from cockpit.web.library import Library


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search at every call."""
    monkeypatch.setattr(module, "PAUSE", -1e9)
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)


def names(library: Library) -> list[str]:
    return sorted(entry.name for entry in library.entries().values())


def test_runs_and_folders(logs: Path, made: Path) -> None:
    assert names(Library([logs])) == ["deep/second", "first"]
    assert names(Library([logs / "first", made / "run.db"])) == ["first", "run"]
    assert names(Library([logs, logs / "first"])) == ["deep/second", "first"]  # not twice


def test_the_default_is_the_folder_of_named_runs(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    monkeypatch.chdir(logs.parent)
    library = Library()
    assert names(library) == []  # it need not be there yet
    logs.rename(logs.parent / "cockpit_logs")
    assert names(library) == ["deep/second", "first"]
    monkeypatch.setenv("COCKPIT_LOGS", str(logs.parent / "cockpit_logs" / "deep"))
    assert names(Library()) == ["second"]


@pytest.mark.parametrize("path", ["nowhere", "file.txt"])
def test_paths_that_are_nothing(tmp_path: Path, path: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(CockpitError, match=path):
        Library([tmp_path / path])


def test_ids_are_stable_and_say_nothing(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = set(Library([logs]).entries())
    monkeypatch.chdir(logs.parent)
    (logs.parent / "link").symlink_to(logs)
    assert set(Library(["logs"]).entries()) == set(Library(["link"]).entries()) == ids
    assert all(len(id) == 16 and int(id, 16) >= 0 for id in ids)


def test_runs_come_and_go(logs: Path, made: Path) -> None:
    library = Library([logs])
    first = {id: entry.run for id, entry in library.entries().items()}
    shutil.copytree(made, logs / "third")
    assert names(library) == ["deep/second", "first", "third"]
    assert all(library.entries()[id].run is run for id, run in first.items())  # what is cached stays
    shutil.rmtree(logs / "first")
    assert names(library) == ["deep/second", "third"]
    assert len(library.sequences()) == 2


def test_a_folder_is_not_searched_all_the_time(
    logs: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "PAUSE", 1.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    library = Library([logs])
    assert len(library.entries()) == 2
    shutil.copytree(made, logs / "third")
    now[0] += 0.9
    assert len(library.entries()) == 2
    now[0] += 0.2
    assert len(library.entries()) == 3
    find = module.find_runs

    def slow(root: Path) -> list[Path]:
        now[0] += 3.0
        return find(root)

    monkeypatch.setattr(module, "find_runs", slow)
    now[0] += 2.0
    library.entries()
    shutil.rmtree(logs / "third")
    now[0] += 29.0
    assert len(library.entries()) == 3
    now[0] += 2.0
    assert len(library.entries()) == 2


def test_what_cannot_be_read_is_there_with_the_reason(logs: Path) -> None:
    broken = {
        "text": b"nothing like a database" * 50,
        "empty": b"",
        "cut": (logs / "first/run.db").read_bytes()[:5000],
    }
    for name, content in broken.items():
        (logs / name).mkdir()
        (logs / name / "run.db").write_bytes(content)
    for name, statement in (("newer", "PRAGMA user_version = 99"), ("foreign", "PRAGMA application_id = 7")):
        shutil.copytree(logs / "first", logs / name)
        db = sqlite3.connect(logs / name / "run.db")
        db.execute(statement)
        db.close()
    (logs / "folder" / "run.db").mkdir(parents=True)
    library = Library([logs])
    said = {entry.name: entry.broken for entry in library.entries().values() if entry.run is None}
    assert set(said) == {*broken, "newer", "foreign"}
    assert "newer Cockpit" in said["newer"]
    assert "another program" in said["foreign"]
    assert "empty" in said["empty"]
    assert str(logs) not in " ".join(said.values())
    assert len(library.sequences()) == 2
    shutil.copy(logs / "first" / "run.db", logs / "text" / "run.db")  # it can be read by now
    assert "text" not in {entry.name for entry in library.entries().values() if entry.run is None}


def test_no_link_leads_out(logs: Path, made: Path) -> None:
    outside = shutil.copytree(made, logs.parent / "outside")
    (logs / "folder").symlink_to(outside)
    (logs / "file").mkdir()
    (logs / "file" / "run.db").symlink_to(outside / "run.db")
    (logs / "inside").mkdir()
    (logs / "inside" / "run.db").symlink_to(logs / "first" / "run.db")
    (logs / "loop").symlink_to(logs)
    (logs / "dangling").mkdir()
    (logs / "dangling" / "run.db").symlink_to(logs / "nothing")
    assert names(Library([logs])) == ["dangling", "deep/second", "first", "inside"]


def test_sequences_while_a_run_is_written_and_deleted(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        library = Library([tmp_path])
        (before,) = library.sequences().values()
        writer.write([Record(0, "loss", 1.0)])
        writer.flush()
        (after,) = library.sequences().values()
    assert after > before
    entries = library.entries()
    shutil.rmtree(tmp_path / "run")
    library._entries, library._next = entries, float("inf")  # deleted since the last search
    assert library.sequences() == {}


def test_a_thousand_runs_are_looked_at_quickly(tmp_path: Path, made: Path) -> None:
    for k in range(50):
        (tmp_path / str(k)).mkdir()
        shutil.copy(made / "run.db", tmp_path / str(k))
    library = Library([tmp_path])
    for entry in library.entries().values():
        assert entry.run is not None
        entry.run._looked += 1e6  # as if the files were old
    library._next = float("inf")
    begun = time.perf_counter()
    assert len(library.sequences()) == 50
    assert time.perf_counter() - begun < 0.1


def test_the_newest_run_is_read_ahead(tmp_path: Path) -> None:
    for name in ("old", "new"):
        fake_run(tmp_path / name, steps=30, parameters=2)
    os.utime(tmp_path / "old", (1, 1))
    library = Library([tmp_path])
    assert library.memory.size == 0
    library.read_newest()
    size = library.memory.size
    assert size > 0
    newest = next(e.run for e in library.entries().values() if e.name == "new")
    assert newest is not None
    newest.series("loss")
    assert library.memory.size == size, "it is there already"


def test_reading_ahead_of_nothing_or_rubbish_is_no_matter(tmp_path: Path) -> None:
    Library([tmp_path]).read_newest()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").write_bytes(b"rubbish")
    Library([tmp_path]).read_newest()
