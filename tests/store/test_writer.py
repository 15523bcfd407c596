"""Writer: what it is given can be read, continued and taken back; nothing it is given makes it raise."""

from __future__ import annotations

import gc
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.store.record import Event, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from store.written import losses


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
