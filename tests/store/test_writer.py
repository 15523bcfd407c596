"""Writer: nothing acknowledged is ever lost, and whatever happens to the disk, training goes on."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.store import worker
from cockpit.store.inbox import Inbox
from cockpit.store.record import Event, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer

HEADER = """
import os, sys, time, warnings
from pathlib import Path
from cockpit.store.record import Event, Record
from cockpit.store.writer import Writer
folder = Path(sys.argv[1])
"""


def child(script: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HEADER + script, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(start: int, stop: int, value: float = 1.0) -> list[Record]:
    return [Record(step, "loss", value) for step in range(start, stop)]


def sound(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon after a failure, so that tests of recovery are short."""
    monkeypatch.setattr(worker, "PATIENCE", 0.1)
    monkeypatch.setattr(worker, "INTERVAL", 0.05)


def test_what_is_flushed_is_acknowledged_and_readable(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        assert writer.acknowledged == 0
        writer.write(losses(0, 10))
        assert writer.flush()
        assert writer.acknowledged == 10
        assert len(Run(tmp_path).series("loss")) == 10


def test_what_is_written_becomes_readable_without_flush(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write(losses(0, 3))
        limit = time.monotonic() + 5
        while writer.acknowledged < 3 and time.monotonic() < limit:
            time.sleep(0.02)
        assert len(Run(tmp_path).series("loss")) == 3


def test_close_leaves_one_file_that_needs_no_log(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write(losses(0, 600))
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    writer.close()
    writer.write(losses(600, 601))
    assert not writer.folder.joinpath("run.db-wal").exists()


def test_close_with_a_reader_connected_still_ends_the_run(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(losses(0, 5))
    writer.flush()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM state").fetchall()
        writer.close()
        assert Run(tmp_path).status == "finished"
    assert len(Run(tmp_path).series("loss")) == 5


def test_a_run_is_continued(tmp_path: Path) -> None:
    for part in range(3):
        with Writer(tmp_path, {f"part{part}": part}) as writer:
            writer.write(losses(10 * part, 10 * part + 10))
            writer.write([Record(10 * part, "h", np.arange(3.0))])
            assert Run(tmp_path).status == "running"
    run = Run(tmp_path)
    assert run.series("loss").steps.tolist() == list(range(30))
    assert run.series("h").steps.tolist() == [0, 10, 20]
    assert {"part0", "part1", "part2"} <= set(run.meta)


@pytest.mark.parametrize("compacted", [False, True])
def test_rewind_deletes_what_lies_beyond(tmp_path: Path, compacted: bool) -> None:
    writer = Writer(tmp_path)
    writer.write([*losses(0, 1000), Record(700, "alpha", 0.0, status="flat"), Record(100, "alpha", 0.0)])
    writer.write([Record(step, "h", np.ones(2)) for step in range(0, 1000, 100)])
    writer.event(Event(650, "gap", "superseded"))
    writer.event(Event(10, "gap", "kept"))
    if compacted:
        writer.close()
        writer = Writer(tmp_path)
    writer.rewind(600)
    writer.write(losses(600, 610, value=2.0))
    writer.close()
    run = Run(tmp_path)
    series = run.series("loss")
    assert series.steps.tolist() == list(range(610))
    assert np.asarray(series.values)[599:601].tolist() == [1.0, 2.0]
    assert run.series("alpha").steps.tolist() == [100]
    assert run.series("h").steps.tolist() == list(range(0, 600, 100))
    assert [(event.step, event.kind) for event in run.events()] == [(10, "gap"), (600, "rewind")]


def test_rewind_to_the_beginning(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write(losses(0, 20))
        writer.rewind(0)
    assert len(Run(tmp_path).series("loss")) == 0


def test_kill_9_loses_no_acknowledged_record_and_at_most_a_second(tmp_path: Path) -> None:
    script = """
writer = Writer(folder)
step = 0
while True:
    writer.write([Record(step, "loss", time.time()), Record(step, "twin", 1.0, "w")])
    step += 1
    if step % 20 == 0:
        print(writer.acknowledged, time.time(), flush=True)
    time.sleep(0.0005)
"""
    process = child(script, tmp_path)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(60)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    acknowledged, now = map(float, [*told, *rest.splitlines()][-1].split())
    assert acknowledged > 0
    run = Run(tmp_path)
    series = run.series("loss")
    assert len(series) + len(run.series("twin", "w")) >= acknowledged
    assert series.steps.tolist() == list(range(len(series)))
    assert now - np.asarray(series.values)[-1] < 1.5  # a second, and a loaded machine
    assert run.status == "ended without close"
    assert sound(tmp_path)


def test_a_killed_run_can_be_continued(tmp_path: Path) -> None:
    process = child(
        "w = Writer(folder); w.write([Record(0, 'loss', 1.0)]); w.flush(); os.kill(os.getpid(), 9)", tmp_path
    )
    process.communicate()
    assert process.returncode == -9
    with Writer(tmp_path) as writer:
        writer.write(losses(1, 3))
    assert len(Run(tmp_path).series("loss")) == 3


def test_the_end_of_the_interpreter_flushes(tmp_path: Path) -> None:
    process = child("w = Writer(folder); w.write([Record(k, 'loss', 1.0) for k in range(1000)])", tmp_path)
    _, errors = process.communicate()
    assert errors == ""
    assert len(Run(tmp_path).series("loss")) == 1000
    assert Run(tmp_path).status == "finished"


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    script = """
writer = Writer(folder)
writer.write([Record(0, "loss", 1.0)])
pid = os.fork()
if pid == 0:
    writer.write([Record(99, "loss", 99.0)])
    assert not writer.flush()
    writer.event(Event(99, "x", "y")); writer.rewind(0); writer.set_meta({"child": 1}); writer.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
for step in range(1, 50):
    writer.write([Record(step, "loss", 1.0)])
    assert writer.flush()
"""
    process = child(script, tmp_path)
    _, errors = process.communicate()
    assert errors == ""
    run = Run(tmp_path)
    assert run.series("loss").steps.tolist() == list(range(50))
    assert "child" not in run.meta
    assert sound(tmp_path)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("my diary, which is long enough to be something else " * 30)
    with pytest.raises(CockpitError, match=r"not a run.*another folder"):
        Writer(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with closing(sqlite3.connect(other / "run.db")) as db:
        db.execute("CREATE TABLE diary (day TEXT)")
    with pytest.raises(CockpitError, match="another program"):
        Writer(other)
    assert (tmp_path / "run.db").read_text().startswith("my diary")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Writer(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(CockpitError, match=r"newer.*[Uu]pdate"):
        Writer(tmp_path)
    with pytest.raises(CockpitError, match=r"newer.*[Uu]pdate"):
        Run(tmp_path)


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


def test_records_that_cannot_be_stored_do_not_take_others_with_them(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    bad = [
        Record(0, "object", np.array([object()])),
        Record(0, "text", "five"),  # type: ignore[arg-type]
        Record(0, "surrogate\ud800", 1.0),
        Record(2**70, "far", 1.0),
        "not a record",
    ]
    writer.write([Record(0, "loss", 1.0), *bad, Record(1, "loss", 2.0)])  # type: ignore[list-item]
    with pytest.warns(RuntimeWarning, match="5 records cannot be stored"):
        assert writer.flush()
    assert writer.acknowledged == 2
    writer.close()
    run = Run(tmp_path)
    assert len(run.series("loss")) == 2
    assert len(run.events("refused")) == 1


def test_write_does_not_raise_whatever_it_is_given(tmp_path: Path) -> None:
    def broken() -> Iterator[Record]:
        yield Record(0, "loss", 1.0)
        raise RuntimeError("half way")

    writer = Writer(tmp_path)
    with pytest.warns(RuntimeWarning, match="half way"):
        writer.write(broken())
    writer.write(losses(0, 1))
    writer.close()
    assert len(Run(tmp_path).series("loss")) == 1


def test_no_thread_and_no_connection_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # a writer of another test may still be closing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in range(5):
            with Writer(tmp_path / str(part)) as writer:
                writer.write(losses(0, 5))
        gc.collect()
    assert set(threading.enumerate()) <= before


def test_many_series_are_written_and_read(tmp_path: Path) -> None:
    """A wide run goes through compaction; no time is asserted."""
    layers = [f"layer{k}.weight" for k in range(200)]
    with Writer(tmp_path) as writer:
        for step in range(600):
            writer.write(
                [Record(step, "grad_norm", float(step + k), layer) for k, layer in enumerate(layers)]
            )
        assert writer.flush(30.0)
        assert writer.acknowledged == 600 * 200
    run = Run(tmp_path)
    for k in (0, 99, 199):
        np.testing.assert_array_equal(run.series("grad_norm", layers[k]).values, np.arange(600.0) + k)


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
