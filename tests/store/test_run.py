"""Run: what was written is read back, whatever the values, in whatever order, while it grows."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cockpit.errors import CockpitError
from cockpit.store import chunks, tables
from cockpit.store.record import Event, Histogram, Record
from cockpit.store.run import Run, find_runs
from cockpit.store.writer import Writer


def write(folder: Path, records: list[Record], size: int = 7) -> Run:
    """Write records in several calls and transactions, and return the run."""
    with Writer(folder) as writer:
        for k in range(0, len(records), size):
            writer.write(records[k : k + size])
            if k % 3 == 0:
                assert writer.flush()
    return Run(folder)


names = st.text(min_size=1, max_size=8)
numbers = st.builds(
    Record,
    step=st.integers(0, 2**62),
    name=names,
    value=st.floats(),
    scope=st.text(max_size=5),
    status=st.sampled_from(["ok", "ok", "zero_gradient: ‖g‖ = 0", "ünïcode"]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(numbers, min_size=1, max_size=40))
@example(records=[Record(0, "loss", 1.0, "\0"), Record(0, "loss", 2.0, "\0a"), Record(0, "loss", 3.0)])
def test_numbers_come_back_as_they_were_written(
    records: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = write(tmp_path_factory.mktemp("run"), records)
    expected: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        expected.setdefault((record.name, record.scope), {})[record.step] = record
    assert set(run.names()) == {name for name, _ in expected}
    for (name, scope), by_step in expected.items():
        series = run.series(name, scope)
        assert series.steps.tolist() == sorted(by_step)
        np.testing.assert_array_equal(series.values, [by_step[step].value for step in sorted(by_step)])
        assert series.status == [by_step[step].status for step in sorted(by_step)]


def test_steps_are_sorted_and_the_last_value_of_a_step_counts(tmp_path: Path) -> None:
    steps = [5, 3, 9, 3, 1, 9]
    run = write(tmp_path, [Record(step, "loss", float(k)) for k, step in enumerate(steps)], size=1)
    series = run.series("loss")
    assert series.steps.tolist() == [1, 3, 5, 9]
    assert np.asarray(series.values).tolist() == [4.0, 3.0, 0.0, 5.0]


def test_a_later_ok_replaces_an_earlier_gap(tmp_path: Path) -> None:
    gap, value = Record(4, "alpha", math.nan, status="flat"), Record(4, "alpha", 0.5)
    assert write(tmp_path / "a", [gap, value], size=1).series("alpha").status == ["ok"]
    assert write(tmp_path / "b", [gap, value], size=2).series("alpha").status == ["ok"]
    assert write(tmp_path / "c", [value, gap], size=1).series("alpha").status == ["flat"]


def test_histograms_and_arrays_keep_shape_counts_edges_and_what_lies_outside(tmp_path: Path) -> None:
    edges = np.linspace(-1, 1, 5)
    one = Histogram(np.array([1, 2**40, 0, 3]), edges, underflow=5, overflow=6, nan=7, inf=8)
    two = Histogram(np.arange(8).reshape(4, 2), (edges, np.array([0.0, 0.5, np.inf])))
    theta = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    records = [
        Record(1, "grad_hist1d", one),
        Record(1, "grad_hist2d", two),
        Record(2, "parameters", theta, "w"),
    ]
    run = write(tmp_path, records)
    (back,) = run.series("grad_hist1d").values
    assert isinstance(back, Histogram)
    assert (back.underflow, back.overflow, back.nan, back.inf) == (5, 6, 7, 8)
    assert back.counts.dtype == np.int64
    assert back.total == one.total
    np.testing.assert_array_equal(back.edges, edges)
    (back,) = run.series("grad_hist2d").values
    assert isinstance(back, Histogram)
    np.testing.assert_array_equal(back.counts, two.counts)
    np.testing.assert_array_equal(back.edges[1], two.edges[1])
    steps, values = run.series("parameters", "w").to_numpy()
    assert steps.tolist() == [2]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values[0], theta)


def test_gaps_among_histograms_are_numbers_with_a_status(tmp_path: Path) -> None:
    hist = Histogram(np.array([1, 2]), np.array([0.0, 1.0, 2.0]))
    records = [
        Record(0, "h", math.nan, status="batch_size_1"),
        Record(1, "h", hist),
        Record(2, "h", math.nan, status="zero_gradient"),
        Record(3, "h", hist),
        Record(0, "h", hist),  # a late value for the first gap
    ]
    series = write(tmp_path, records, size=1).series("h")
    assert series.status == ["ok", "ok", "zero_gradient", "ok"]
    assert [isinstance(value, Histogram) for value in series.values] == [True, True, False, True]
    assert len(series.to_numpy()[1]) == 4


def test_an_array_is_stored_as_it_was_when_it_was_handed_over(tmp_path: Path) -> None:
    weights = np.ones(3)
    with Writer(tmp_path) as writer:
        writer.write([Record(0, "parameters", weights)])
        weights[:] = 7.0
    np.testing.assert_array_equal(Run(tmp_path).series("parameters").values[0], np.ones(3))


def test_since_and_points(tmp_path: Path) -> None:
    values = np.sin(np.arange(3000) / 50)
    values[1234] = 99.0
    values[2345] = math.nan
    run = write(tmp_path, [Record(k, "loss", float(v)) for k, v in enumerate(values)], size=300)
    assert run.series("loss", since=2990).steps.tolist() == list(range(2990, 3000))
    assert len(run.series("loss", since=3000)) == 0
    few = run.series("loss", points=100)
    assert len(few) <= 100
    assert {1234, 2345} <= set(few.steps.tolist())
    assert np.nanmin(np.asarray(few.values)) == np.nanmin(values)


def test_many_scopes_at_once(tmp_path: Path) -> None:
    """Numbers in chunks and rows, at different steps, with statuses, and arrays among them."""
    records = [
        Record(step, "n", step + 0.5, scope, "odd" if step % 5 == 0 else "ok")
        for step in range(60)
        for scope in ("", "a", "b")
        if scope != "b" or step > 20
    ]
    records += [Record(step, "n", np.full(2, float(step)), "h") for step in range(3)]
    with Writer(tmp_path) as writer:
        writer.write(records)
        assert writer.flush()
        run = Run(tmp_path)
        for scopes, since in ((None, 0), (["b", "", "h"], 7), (["a"], 1000), ([], 0)):
            found = run.all_series("n", scopes, since)
            assert [one.scope for one in found] == (["", "a", "b", "h"] if scopes is None else scopes)
            for one in found:
                alone = run.series("n", one.scope, since)
                assert (one.steps.tolist(), list(one.status)) == (alone.steps.tolist(), list(alone.status))
                np.testing.assert_array_equal(one.to_numpy()[1], alone.to_numpy()[1])
        assert run.all_series("n", ["b"])[0].status.count("odd") == 7
        assert run.all_series("n", ["b"])[0].values[0] == 21.5
    with pytest.raises(CockpitError, match="'n' has no scope 'c'"):
        run.all_series("n", ["a", "c"])
    with pytest.raises(CockpitError, match="no series 'm'"):
        run.all_series("m")


def test_arrays_are_picked_evenly(tmp_path: Path) -> None:
    records = [Record(k, "h", np.full(2, float(k))) for k in range(0, 400, 2)]
    run = write(tmp_path, records, size=50)
    few = run.series("h", points=9)
    assert few.steps[0] == 0
    assert few.steps[-1] == 398
    assert len(few) == 9
    assert len(run.series("h", since=391)) == 4


def test_names_scopes_meta_events_and_status(tmp_path: Path) -> None:
    with Writer(tmp_path / "r", {"config": "economy", "odd": {1, 2}}) as writer:
        writer.write([Record(0, "grad_norm", 1.0, "b"), Record(0, "grad_norm", 1.0, "a")])
        writer.write([Record(0, "loss", 1.0), Record(0, "grad_norm", 1.0)])
        writer.set_meta({"optimizer": "SGD"})
        writer.event(Event(3, "gap", "why", "a", {"lr": 0.1}))
        writer.event(Event(4, "skipped", "why not"))
        assert writer.flush()
        run = Run(tmp_path / "r" / "run.db")
        assert run.status == "running"
        before = run.sequence
        writer.write([Record(1, "loss", 1.0)])
        assert writer.flush()
        assert run.sequence > before
    assert run.names() == ["grad_norm", "loss"]
    assert run.scopes("grad_norm") == ["", "b", "a"]
    meta = run.meta
    assert (meta["config"], meta["optimizer"], meta["odd"]) == ("economy", "SGD", [1, 2])
    (gap,) = run.events("gap")
    assert (gap.step, gap.text, gap.scope, gap.data) == (3, "why", "a", {"lr": 0.1})
    assert [event.kind for event in run.events()] == ["gap", "skipped"]
    assert run.status == "finished"
    assert run.steps() == (2, 1)


def test_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    records = [Record(0, "loss", 1.0), Record(1, "loss", math.nan, status="gap"), Record(1, "n", 2.0, "w")]
    run = write(tmp_path, records)
    frame = run.to_pandas()
    assert list(frame.columns) == ["step", "name", "scope", "value", "status"]
    assert frame.query("name == 'n'")[["step", "scope", "value"]].to_numpy().tolist() == [[1, "w", 2.0]]
    one = run.series("loss").to_pandas()
    assert one.index.tolist() == [0, 1]
    assert one["status"].tolist() == ["ok", "gap"]
    assert isinstance(one, pandas.DataFrame)


def test_unknown_names_say_what_there_is(tmp_path: Path) -> None:
    run = write(tmp_path, [Record(0, "grad_norm", 1.0, "layer1.weight"), Record(0, "loss", 1.0)])
    with pytest.raises(CockpitError, match=r"did you mean 'grad_norm'.*loss"):
        run.series("gradnorm")
    with pytest.raises(CockpitError, match=r"did you mean 'layer1.weight'"):
        run.series("grad_norm", "layer1.wieght")
    with pytest.raises(CockpitError, match="no series 'zzz'"):
        run.scopes("zzz")


def test_paths_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(CockpitError, match="does not exist"):
        Run(tmp_path / "nowhere")
    with pytest.raises(CockpitError, match=r"no run\.db"):
        Run(tmp_path)
    (tmp_path / "run.db").write_bytes(b"")
    with pytest.raises(CockpitError, match="empty"):
        Run(tmp_path)
    (tmp_path / "run.db").write_text("something else altogether, and long enough to be looked at" * 20)
    with pytest.raises(CockpitError, match="is not a run"):
        Run(tmp_path)
    write(tmp_path / "below" / "r", [Record(0, "loss", 1.0)])
    with pytest.raises(CockpitError, match="holds 1"):
        Run(tmp_path / "below")


def test_find_runs(tmp_path: Path) -> None:
    for name in ("b", "a/c"):
        write(tmp_path / name, [Record(0, "loss", 1.0)])
    assert find_runs(tmp_path) == [tmp_path / "a" / "c", tmp_path / "b"]
    assert find_runs(tmp_path / "nowhere") == []


def test_compaction_and_merging_are_invisible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HOT_ROWS", 50)
    monkeypatch.setattr(chunks, "SMALL_CHUNKS", 4)
    monkeypatch.setattr(chunks, "FULL", 300)
    with Writer(tmp_path) as writer:
        for step in range(2000):
            records = [Record(step, "loss", float(step))]
            if step % 7 == 0:
                records.append(Record(step, "rare", float(step), status="odd" if step % 2 else "ok"))
            if step:
                records.append(Record(step - 1, "late", float(step - 1)))  # known one step later
            if step % 100 == 50:
                records.append(Record(step - 50, "loss", -1.0))  # corrects what may be compacted already
            writer.write(records)
            if step % 60 == 0:
                assert writer.flush()
            if step % 300 == 0 or step == 1999:
                assert writer.flush()
                run = Run(tmp_path)
                rare, loss = run.series("rare"), run.series("loss")
                assert rare.steps.tolist() == list(range(0, step + 1, 7))
                assert np.asarray(rare.values).tolist() == rare.steps.tolist()
                assert rare.status == ["odd" if step % 2 else "ok" for step in rare.steps]
                assert loss.steps.tolist() == list(range(step + 1))
                corrected = [-1.0 if k % 100 == 0 and k + 50 <= step else k for k in range(step + 1)]
                assert np.asarray(loss.values).tolist() == corrected
                assert step == 0 or run.series("late").steps.tolist() == list(range(step))
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        assert db.execute("SELECT count(*) FROM step_row").fetchone() == (0,)
        text = "SELECT name, count(*) FROM chunk JOIN series ON series = series.id GROUP BY name"
        found = dict(db.execute(text).fetchall())
    assert found["rare"] <= 4
    assert found["loss"] <= 2000 / 300 + 4


def test_reading_while_another_process_writes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    script = """
import sys, time
from pathlib import Path
from cockpit.store.record import Record
from cockpit.store.writer import Writer
with Writer(Path(sys.argv[1])) as writer:
    for step in range(3000):
        writer.write([Record(step, "loss", float(step)), Record(step, "twin", -float(step))])
        if step % 10 == 0:
            time.sleep(0.003)
        if step % 40 == 0:
            writer.flush()
            print("ready", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    request.addfinalizer(child.kill)
    request.addfinalizer(child.stdout.close)
    assert child.stdout.readline() == "ready\n"
    run, seen, sequence, lengths = Run(tmp_path), 0, -1, set()
    while child.poll() is None:
        now = run.sequence
        series = run.series("loss")
        assert now >= sequence
        assert len(series) >= seen
        assert series.steps.tolist() == list(range(len(series)))
        assert np.array_equal(np.asarray(series.values), series.steps)
        seen, sequence = len(series), now
        lengths.add(seen)
        time.sleep(0.005)
    assert child.returncode == 0
    assert len(lengths) > 3
    assert len(run.series("twin")) == 3000


def test_reading_imports_no_torch() -> None:
    script = "import cockpit.store.run, cockpit.cli, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
