"""The thread that writes: whatever happens to the disk, training goes on, and records wait for better times."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cockpit.store.inbox import Inbox
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from store.written import child, impatient, losses, sound

__all__ = ["impatient"]  # a fixture


@pytest.mark.usefixtures("impatient")
def test_a_locked_file_gives_one_warning_and_is_written_when_free(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    lock = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    writer.write(losses(0, 5))
    with pytest.warns(RuntimeWarning, match="locked") as caught:
        assert not writer.flush(1.5)
    assert len(caught) == 1
    started = time.monotonic()
    for step in range(5, 200):
        writer.write(losses(step, step + 1))  # no second warning: it would be an error here
    assert time.monotonic() - started < 1.0
    lock.execute("COMMIT")
    lock.close()
    assert writer.flush(10.0)
    writer.close()
    assert len(Run(tmp_path).series("loss")) == 200


@pytest.mark.usefixtures("impatient")
def test_a_deleted_folder_gives_one_warning_and_stays_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = Writer(folder)
    writer.write(losses(0, 5))
    assert writer.flush()
    shutil.rmtree(folder)
    writer.write(losses(5, 10))
    with pytest.warns(RuntimeWarning, match="No such file"):
        assert not writer.flush(0.3)
    writer.write(losses(10, 15))
    writer.close()
    assert not folder.exists()


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_comes_back_is_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = Writer(folder, {"config": "full"})
    shutil.rmtree(folder)
    writer.write(losses(5, 10))
    with pytest.warns(RuntimeWarning):
        assert not writer.flush(0.5)
    folder.mkdir()
    assert writer.flush(5.0)
    writer.close()
    assert len(Run(folder).series("loss")) == 5
    assert Run(folder).meta["config"] == "full"


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="trouble"):
        writer = Writer(tmp_path / "file" / "run")
    writer.write(losses(0, 5))
    (tmp_path / "file").unlink()
    assert writer.flush(5.0)
    writer.close()
    assert len(Run(tmp_path / "file" / "run").series("loss")) == 5


FULL = """
import resource
from cockpit.store import worker
worker.PATIENCE = 0.1
writer = Writer(folder)
writer.write([Record(k, "loss", 1.0) for k in range(100)])
assert writer.flush()
LIMIT_ON
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    step = 100
    limit = time.monotonic() + 20
    while not (caught and not writer.flush(0.3)) and time.monotonic() < limit:
        writer.write([Record(step, f"n{k}", 1.0) for k in range(200)])
        step += 1
        time.sleep(0.002)
    for _ in range(50):
        writer.write([Record(step, "loss", 2.0)]); step += 1
    assert not writer.flush(0.5)
    LIMIT_OFF
    assert writer.flush(10)
    writer.close()
said = str(caught[0].message)
print(len(caught), "full" in said or "I/O" in said, writer.acknowledged, step)
"""


def full_disk(folder: Path, limit_on: str, limit_off: str) -> None:
    """Fill the disk under a writer, make room again, and find every record."""
    process = child(FULL.replace("LIMIT_ON", limit_on).replace("LIMIT_OFF", limit_off), folder)
    output, errors = process.communicate(timeout=60)
    assert errors == ""
    warned, says_so, acknowledged, step = output.split()
    assert (warned, says_so) == ("1", "True")
    run = Run(folder)
    assert len(run.series("loss")) == 150
    assert len(run.series("n7")) == int(step) - 150
    assert int(acknowledged) == 150 + 200 * (int(step) - 150)
    assert sound(folder)


def test_a_file_that_may_not_grow_and_then_may(tmp_path: Path) -> None:
    set_limit = "resource.setrlimit(resource.RLIMIT_FSIZE, ({}, resource.RLIM_INFINITY))"
    full_disk(tmp_path, set_limit.format(4096), set_limit.format("resource.RLIM_INFINITY"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_that_is_enlarged(small_disk: Path) -> None:
    full_disk(small_disk / "run", "pass", "os.system(f'mount -o remount,size=64m {folder.parent}')")


def test_a_run_is_read_from_a_read_only_place(small_disk: Path) -> None:
    with Writer(small_disk / "run") as writer:
        writer.write(losses(0, 10))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert len(Run(small_disk / "run").series("loss")) == 10


@pytest.mark.usefixtures("impatient")
def test_dropped_records_become_an_event_when_the_disk_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cockpit.store.writer.Inbox", lambda: Inbox(limit=50_000))
    writer = Writer(tmp_path)
    with closing(sqlite3.connect(tmp_path / "run.db", isolation_level=None)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        writer.write(losses(0, 150))
        with pytest.warns(RuntimeWarning, match="locked"):
            writer.flush(1.2)
        for step in range(150, 500):
            writer.write(losses(step, step + 1))
        lock.execute("COMMIT")
    assert writer.flush(10.0)
    writer.close()
    run = Run(tmp_path)
    (event,) = run.events("dropped")
    assert event.data["records"] + len(run.series("loss")) == 500
    assert event.data["last_step"] == 499


@pytest.mark.usefixtures("impatient")
def test_a_fault_of_our_own_costs_what_it_concerns_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("cockpit.store.tables.Tables.put", lambda self, records: 1 / 0)
        writer.write(losses(0, 5))
        with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
            writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr("cockpit.store.tables.HOT_ROWS", 1)
        patch.setattr("cockpit.store.chunks.Chunks.compact", lambda self: 1 / 0)
        writer.write(losses(5, 10))
        assert writer.flush()
    writer.write(losses(10, 15))
    writer.close()
    run = Run(tmp_path)
    assert run.series("loss").steps.tolist() == list(range(5, 15))
    assert run.events("dropped")[0].data["records"] == 5
    assert run.status == "finished"
