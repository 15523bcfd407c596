"""A cached run answers exactly as the run itself, however it grows, and reads only what is new."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.errors import CockpitError
from cockpit.store import cached
from cockpit.store import run as store_run
from cockpit.store.cached import OVERLAP, CachedRun
from cockpit.store.codec import pack_json
from cockpit.store.database import open_to_write
from cockpit.store.memory import Memory
from cockpit.store.points import Points
from cockpit.store.read import read_numbers
from cockpit.store.record import Event, Histogram, Record
from cockpit.store.run import Run
from cockpit.store.series import Series
from cockpit.store.tables import Tables
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run


class Pen:
    """Writes into a file at once, in one transaction a call, without the writer's thread."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.db = open_to_write(folder)
        self.tables = Tables(self.db)
        self.last = -1

    def _do(self, call: Callable[[], object], changed: bool = True) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        call()
        self.tables.touch(changed)
        self.db.execute("COMMIT")

    def write(self, count: int, name: str = "loss", scope: str = "", status: str = "ok") -> None:
        steps = range(self.last + 1, self.last + 1 + count)
        records = [Record(step, name, float(np.sin(step)), scope, status) for step in steps]
        self._do(lambda: self.tables.put(records))
        self.last += count

    def put(self, *records: Record) -> None:
        self._do(lambda: self.tables.put(records))

    def rewind(self, step: int) -> None:
        self._do(lambda: self.tables.rewind(step))
        self.last = min(self.last, step - 1)

    def compact(self) -> None:
        self._do(self.tables.compact, changed=False)

    def meta(self, **values: Any) -> None:
        self._do(lambda: self.tables.put_meta({key: pack_json(value) for key, value in values.items()}))

    def event(self, kind: str) -> None:
        self._do(lambda: self.tables.put_event(Event(self.last, kind, "text"), "{}"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, not to be changed."""
    return fake_run(tmp_path_factory.mktemp("made") / "run", steps=120, parameters=6)


@pytest.fixture
def pen(tmp_path: Path) -> Pen:
    return Pen(tmp_path)


def look(run: CachedRun) -> CachedRun:
    """Look at the file as every request does."""
    assert run.sequence == Run(run.path).sequence
    return run


def assert_same(one: Series, other: Series) -> None:
    assert (one.name, one.scope) == (other.name, other.scope)
    np.testing.assert_array_equal(one.steps, other.steps)
    assert list(one.status) == list(other.status)
    assert type(one.values) is type(other.values)
    for mine, theirs in zip(one.values, other.values, strict=True):
        if isinstance(theirs, Histogram):
            assert isinstance(mine, Histogram)
            np.testing.assert_array_equal(mine.counts, theirs.counts)
        else:
            np.testing.assert_array_equal(mine, theirs)


QUESTIONS: list[dict[str, Any]] = [
    {},
    {"since": 7},
    {"since": -(2**63)},
    {"points": 10},
    {"points": 1},
    {"since": 30, "points": 4},
    {"since": 10**6},
]


def assert_answers_like_run(run: CachedRun) -> None:
    look(run)
    plain = Run(run.path)
    assert run.names() == plain.names()
    assert run.meta == plain.meta
    assert run.steps() == plain.steps()
    assert run.status == plain.status
    assert [event.kind for event in run.events()] == [event.kind for event in plain.events()]
    assert [event.step for event in run.events("rewind")] == [event.step for event in plain.events("rewind")]
    for name in plain.names():
        assert run.scopes(name) == plain.scopes(name)
        for scope in plain.scopes(name)[:2]:
            for question in QUESTIONS:
                assert_same(run.series(name, scope, **question), plain.series(name, scope, **question))
        for since in (0, 30):
            for mine, theirs in zip(
                run.all_series(name, since=since), plain.all_series(name, since=since), strict=True
            ):
                assert_same(mine, theirs)


def test_a_made_run(made: Path) -> None:
    assert_answers_like_run(CachedRun(made, Memory()))


def test_errors_are_the_same(pen: Pen, tmp_path: Path) -> None:
    pen.write(3)
    run = CachedRun(tmp_path, Memory())
    for ask in (lambda r: r.series("los"), lambda r: r.series("loss", "x"), lambda r: r.scopes("los")):
        with pytest.raises(CockpitError) as mine:
            ask(run)
        with pytest.raises(CockpitError) as theirs:
            ask(Run(tmp_path))
        assert str(mine.value) == str(theirs.value)
    with pytest.raises(CockpitError):
        CachedRun(tmp_path / "nothing", Memory())


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([1, 3, OVERLAP, 200])),
    st.tuples(st.just("write"), st.sampled_from([1, 90]), st.just("loss"), st.just(""), st.just("odd: x")),
    st.tuples(st.just("write"), st.sampled_from([1, 70]), st.just("grad_norm"), st.just("layer.weight")),
    st.tuples(st.just("rewind"), st.sampled_from([0, 5, 50, 100, 1000])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("event"), st.just("gap")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.tuples(ACTIONS, st.booleans()), min_size=1, max_size=12))
def test_however_it_grows(tmp_path: Path, actions: list[tuple[tuple[Any, ...], bool]]) -> None:
    """Also where it is not looked at after every change."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    with closing((pen := Pen(folder)).db):
        run = CachedRun(folder, Memory())
        for (action, *arguments), looked in actions:
            getattr(pen, action)(*arguments)
            if looked:
                assert_answers_like_run(run)
        assert_answers_like_run(run)


def test_a_rewind_to_the_same_length(pen: Pen, tmp_path: Path) -> None:
    """Nothing is longer or shorter afterwards, and the end is the same, but the middle is something else."""
    pen.write(300)
    run = CachedRun(tmp_path, Memory())
    run.series("loss")
    pen.rewind(10)
    pen.put(*(Record(step, "loss", -1.0) for step in range(10, 200)))
    pen.last = 199
    pen.write(100)
    values = look(run).series("loss").values
    assert isinstance(values, np.ndarray)
    assert (values[10:200] == -1.0).all()
    assert len(values) == 300


def test_only_what_is_new_is_read(pen: Pen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def spy(db: sqlite3.Connection, series: Sequence[int], since: int) -> list[Points]:
        asked.append((len(series), since))
        return read_numbers(db, series, since)

    monkeypatch.setattr(store_run, "read_numbers", spy)
    pen.write(1000)
    run = CachedRun(tmp_path, Memory())
    run.series("loss")
    asked.clear()
    run.series("loss", points=10)
    run.series("loss", since=500)
    assert asked == []
    pen.write(5)
    assert len(look(run).series("loss")) == 1005
    assert asked == [(1, 1000 - OVERLAP)]


def test_many_series_are_read_at_once(pen: Pen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scopes = [f"layer{k}.weight" for k in range(9)]
    pen.put(*(Record(step, "grad_norm", 1.0, scope) for step in range(200) for scope in scopes))
    run, opened = CachedRun(tmp_path, Memory()), []
    run.series("grad_norm", scopes[4])
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **options: opened.append(1) or connect(*_, **options))
    assert [len(one) for one in run.all_series("grad_norm", scopes)] == [200] * 9
    assert len(opened) == 1
    run.all_series("grad_norm", scopes, since=100)
    assert len(opened) == 1
    pen.put(*(Record(200, "grad_norm", 2.0, scope) for scope in scopes))
    look(run)
    opened.clear()
    assert [one.values[-1] for one in run.all_series("grad_norm", scopes)] == [2.0] * 9
    assert len(opened) == 1


def test_values_replaced_far_back_are_seen_at_last(
    pen: Pen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen.write(1000)
    run = CachedRun(tmp_path, Memory())
    run.series("loss")
    pen.put(Record(3, "loss", 77.0))
    monkeypatch.setattr(cached, "TRUST", 0.0)
    assert look(run).series("loss").values[3] == 77.0
    monkeypatch.undo()
    pen.put(Record(3, "loss", 78.0), Record(999, "loss", 79.0))  # the newest ones are compared
    assert look(run).series("loss").values[3] == 78.0
    pen.put(Record(3, "loss", 80.0))
    pen.meta(ended=1.0)  # the end of a run
    assert look(run).series("loss").values[3] == 80.0
    pen.put(Record(3, "loss", 81.0))
    pen.meta(writer={"pid": 1})  # somebody else goes on with it
    assert look(run).series("loss").values[3] == 81.0


def test_numbers_that_become_arrays(pen: Pen, tmp_path: Path) -> None:
    pen.write(OVERLAP + 10)
    run = CachedRun(tmp_path, Memory())
    assert_answers_like_run(run)
    counts = Histogram(np.arange(3), np.arange(4.0))
    pen.put(Record(pen.last + 1, "loss", counts), Record(pen.last + 2, "loss", counts))
    assert_answers_like_run(run)
    pen.last += 2
    pen.put(Record(pen.last + 1, "loss", counts))
    assert_answers_like_run(run)


def test_another_run_in_the_same_place(tmp_path: Path) -> None:
    for folder, value in (("a", 1.0), ("b", 2.0)):
        with Writer(tmp_path / folder) as writer:
            writer.write([Record(step, "loss", value) for step in range(100)])
    run = CachedRun(tmp_path / "a", Memory())
    assert run.series("loss").values[0] == 1.0
    (tmp_path / "b" / "run.db").replace(tmp_path / "a" / "run.db")
    assert look(run).series("loss").values[0] == 2.0


def test_answers_cannot_be_changed(made: Path) -> None:
    values = CachedRun(made, Memory()).series("loss").values
    assert isinstance(values, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0.0
    run = CachedRun(made, Memory())
    run.names().clear()
    run.meta.clear()
    assert run.names()
    assert run.meta


def test_a_small_memory_only_costs_time(made: Path) -> None:
    memory = Memory(5000)
    assert_answers_like_run(CachedRun(made, memory))
    assert 0 < memory.size <= 5000


def test_equal_steps_are_kept_once(pen: Pen, tmp_path: Path) -> None:
    records = [Record(step, name, 1.0) for step in range(1000) for name in "abcd"]
    pen.put(*records)
    memory = Memory()
    run = CachedRun(tmp_path, memory)
    series = [run.series(name) for name in "abcd"]
    assert all(np.shares_memory(one.steps, series[0].steps) for one in series)
    assert 5 * 8000 <= memory.size < 6 * 8000


def test_a_file_that_looks_the_same_is_not_opened(
    pen: Pen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen.write(3)
    run = CachedRun(tmp_path, Memory())
    before = run.sequence
    monkeypatch.setattr(cached, "YOUNG", -1e9)
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: pytest.fail("opened"))
    assert run.sequence == before
    monkeypatch.undo()
    pen.write(1)
    assert run.sequence == before + 1


def test_a_file_changed_a_moment_ago_is_opened_though_it_looks_the_same(
    pen: Pen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes within one tick of the file system's clock leave the same time."""
    changed = time.time_ns()
    monkeypatch.setattr(cached, "_state", lambda _: (1, changed, 1))
    pen.write(3)
    run = CachedRun(tmp_path, Memory())
    before = run.sequence
    pen.write(1)
    assert run.sequence == before + 1
    changed -= 10**10
    assert run.sequence == before + 1
    pen.write(1)
    assert run.sequence == before + 1  # this cannot happen: nothing changes in a file without its time


def test_many_threads_while_it_grows(pen: Pen, tmp_path: Path) -> None:
    pen.write(1)
    run = CachedRun(tmp_path, Memory())
    faults: list[object] = []
    done = threading.Event()

    def ask() -> None:
        longest = 0
        while not done.is_set():
            sequence = run.sequence
            found = run.series("loss")
            good = np.array_equal(found.values, np.sin(found.steps))
            if not good or len(found) < longest or len(found) < min(sequence, 1):
                faults.append((sequence, len(found), longest))
            longest = len(found)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for k in range(60):
        pen.write(20)
        if k % 10 == 0:
            pen.compact()
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert_answers_like_run(run)
