"""Columns: what they stand for is read back, in order, with its statuses, as if every value had come by itself."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cockpit.store import chunks, index, rows, tables
from cockpit.store.record import NONFINITE, Column, Columns, Histogram, Histograms, Numbers, Record, Value
from cockpit.store.run import Run
from cockpit.store.writer import Writer

NAMES = ("a.weight", "a.bias", "b.weight")
EDGES = np.array([0.0, 1.0, 2.0])


def write(folder: Path, items: Sequence[Record | Column | Columns], size: int = 1000) -> Run:
    """Write items in transactions of a given size, and return the run."""
    with Writer(folder) as writer:
        for k in range(0, len(items), size):
            writer.write(items[k : k + size])
            assert writer.flush()
    return Run(folder)


def histograms(counts: list[list[int]], names: tuple[str, ...] = NAMES) -> Histograms:
    outside = [[10 * k, 1, 2, 3] for k in range(len(names))]
    return Histograms(names, np.array(counts), EDGES, np.array(outside))


def singly(item: Record | Column | Columns) -> list[Record]:
    """Return the records that a column stands for."""
    if isinstance(item, Record):
        return [item]
    if isinstance(item, Columns):
        return [one for column in item for one in singly(column)]
    found = [] if item.value is None else [Record(item.step, item.name, item.value, "", item.status)]
    for scope, value in (item.parts or {}).items():
        status = (item.marks or {}).get(scope, "ok")
        if item.checked and isinstance(value, float) and not math.isfinite(value):
            status = NONFINITE
        found.append(Record(item.step, item.name, value, scope, status))
    return found


numbers = st.lists(st.floats(), min_size=3, max_size=3).map(lambda values: Numbers((*NAMES,), values))
counts = st.lists(st.lists(st.integers(0, 2**40), min_size=2, max_size=2), min_size=3, max_size=3)
words = st.sampled_from(["ok", "ok", "flat", "zero_gradient: ‖g‖ = 0"])
column = st.builds(
    Column,
    step=st.integers(0, 6),
    name=st.sampled_from(["p", "q"]),
    value=st.none() | st.floats(),
    status=words,
    parts=st.none() | numbers | counts.map(histograms),
    marks=st.none() | st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["coupled", "odd"])),
    checked=st.booleans(),
)
record = st.builds(
    Record,
    step=st.integers(0, 6),
    name=st.sampled_from(["p", "q"]),
    value=st.floats() | st.just(Histogram(np.array([1, 2]), EDGES)),
    scope=st.sampled_from(["", *NAMES]),
    status=words,
)


@st.composite
def several(draw: st.DrawFn) -> Columns:
    """Columns of some steps: numbers or histograms, by themselves or with those of the parameters."""
    steps = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)))
    size = len(steps)
    values = draw(
        st.lists(st.floats() | st.just(Histogram(np.array([1, 2]), EDGES)), min_size=size, max_size=size)
    )
    rows = draw(st.lists(st.lists(st.floats(), min_size=3, max_size=3), min_size=size, max_size=size))
    some = draw(st.lists(counts.map(histograms), min_size=size, max_size=size))
    parts = draw(st.sampled_from([None, (NAMES, np.array(rows)), some]))
    said = draw(st.none() | st.lists(words, min_size=size, max_size=size))
    marks = draw(st.none() | st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["coupled", "odd"])))
    return Columns(steps, draw(st.sampled_from(["p", "q"])), values, said, parts, marks)


def plain(value: Value) -> str:
    if isinstance(value, Histogram):
        outside = (value.underflow, value.overflow, value.nan, value.inf)
        return repr((value.counts.tolist(), np.asarray(value.edges).tolist(), outside))
    return repr(float(value))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(column | record | several(), min_size=1, max_size=30), size=st.integers(1, 31))
def test_columns_are_read_back_as_the_records_they_stand_for(
    items: list[Record | Column | Columns], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = write(tmp_path_factory.mktemp("run"), items, size)
    expected: dict[tuple[str, str], dict[int, tuple[str, str]]] = {}
    for one in (one for item in items for one in singly(item)):
        expected.setdefault((one.name, one.scope), {})[one.step] = (plain(one.value), one.status)
    for (name, scope), by_step in expected.items():
        series = run.series(name, scope)
        found = zip(map(plain, series.values), series.status, strict=True)
        assert dict(zip(series.steps.tolist(), found, strict=True)) == by_step


def test_a_step_of_columns_is_one_row(tmp_path: Path) -> None:
    """Also if the quantities come in another order, and in several calls."""
    with Writer(tmp_path) as writer:
        for step in range(6):
            items = [Column(step, name, 1.0, parts=Numbers(NAMES, [step, 2, 3])) for name in ("p", "q")]
            writer.write(items[:: 1 if step % 2 else -1])
            writer.write([Column(step, "learning_rate", 0.1)])
        assert writer.flush()
        with closing(sqlite3.connect(tmp_path / "run.db")) as db:
            assert db.execute("SELECT count(*) FROM step_row").fetchone() == (6,)
            assert db.execute("SELECT count(*) FROM layout").fetchone() == (1,)
        assert writer.acknowledged == 6 * 9
        assert np.asarray(Run(tmp_path).series("q", "a.weight").values).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_late_column_of_an_earlier_step(tmp_path: Path) -> None:
    """Values that are known later than the step: the newer step's learning rate is written already."""
    items: list[Record | Column] = []
    for step in range(20):
        items.append(Column(step, "learning_rate", 0.1))
        if step >= 3:
            items.append(Column(step - 3, "p", float(step - 3), parts=Numbers(NAMES, np.full(3, step - 3.0))))
    for size in (1, 7, 1000):
        run = write(tmp_path / str(size), items, size)
        for scope in ("", "b.weight"):
            assert run.series("p", scope).steps.tolist() == list(range(17))
            assert np.asarray(run.series("p", scope).values).tolist() == list(range(17))


@pytest.mark.parametrize("compacted", [False, True])
def test_marks_on_every_step_survive_compaction_and_merging(
    tmp_path: Path, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "HOT_ROWS", 20)
    monkeypatch.setattr(chunks, "SMALL_CHUNKS", 3)
    monkeypatch.setattr(chunks, "FULL", 50)
    marks = {"a.bias": "coupled", "b.weight": "coupled", "unknown": "coupled"}
    values = np.arange(300.0).reshape(100, 3)
    values[40, 1] = math.nan
    values[41, 0] = -math.inf
    items: list[Record | Column] = [
        Column(step, "p", parts=Numbers(NAMES, values[step]), marks=marks) for step in range(100)
    ]
    run = write(tmp_path, items, 10 if compacted else 1000)
    for k, scope in enumerate(NAMES):
        series = run.series("p", scope)
        np.testing.assert_array_equal(series.values, values[:, k])
        usual = "ok" if k == 0 else "coupled"
        assert series.status == [
            usual if math.isfinite(value) else NONFINITE for value in values[:, k].tolist()
        ]
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        longest = db.execute("SELECT max(length(status)) FROM chunk").fetchone()[0]
    assert longest < 120  # runs of positions, not every position


def test_names_and_marks_made_anew_at_every_step_are_known_again(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        for step in range(300):
            names = tuple(["a", "".join(["b", "c"])])
            marks = {name: "coupled" for name in names}
            writer.write([Column(step, "p", parts=Numbers(names, [step, -step]), marks=marks)])
        assert writer.flush()
        with closing(sqlite3.connect(tmp_path / "run.db")) as db:
            assert db.execute("SELECT count(*) FROM layout").fetchone() == (1,)
    series = Run(tmp_path).series("p", "bc")
    assert np.asarray(series.values).tolist() == [-step for step in range(300)]
    assert set(series.status) == {"coupled"}


def test_what_is_remembered_may_be_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: many different sets of parameters, and many statuses, one after another."""
    monkeypatch.setattr(index, "KEPT", 3)
    monkeypatch.setattr(rows, "KEPT", 3)
    items: list[Record | Column] = []
    for step in range(40):
        names = tuple(f"w{k}" for k in range(1 + step % 7))
        items.append(
            Column(step, "p", math.nan, f"failed: {step}", Numbers(names, np.full(len(names), step)))
        )
    run = write(tmp_path, items, 25)
    assert list(run.series("p").status) == [f"failed: {step}" for step in range(40)]
    assert run.series("p", "w5").steps.tolist() == [s for s in range(40) if s % 7 >= 5]


def test_histograms_of_all_parameters_are_one_row(tmp_path: Path) -> None:
    items: list[Record | Column] = [
        Column(
            step,
            "h",
            parts=histograms([[step, 1], [2, 300], [4, 5]]),
            marks={"a.bias": "coupled"} if step else None,
        )
        for step in range(5)
    ]
    run = write(tmp_path, items)
    series = run.series("h", "a.bias")
    assert series.status == ["ok", "coupled", "coupled", "coupled", "coupled"]
    last = series.values[-1]
    assert isinstance(last, Histogram)
    assert last.counts.tolist() == [2, 300]
    assert last.counts.dtype == np.int64
    assert (last.underflow, last.overflow, last.nan, last.inf) == (10, 1, 2, 3)
    np.testing.assert_array_equal(np.asarray(last.edges), EDGES)
    assert [h.counts[0] for h in run.series("h", "a.weight", since=3).values] == [3, 4]  # type: ignore[union-attr]
    assert run.series("h", "a.weight", points=3).steps.tolist() == [0, 2, 4]
    assert run.steps() == (5, 4)
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        found = db.execute("SELECT count(*), min(dtype), min(shape) FROM block").fetchone()
        assert found == (5, ">u2", "[3, 2]")
        assert db.execute("SELECT count(*) FROM array").fetchone() == (0,)


def test_histograms_in_two_dimensions(tmp_path: Path) -> None:
    edges = (EDGES, np.array([0.0, 1.0, 2.0, 3.0]))
    counts = np.arange(18).reshape(3, 2, 3)
    run = write(tmp_path, [Column(0, "h", parts=Histograms(NAMES, counts, edges))])
    (found,) = run.series("h", "a.bias").values
    assert isinstance(found, Histogram)
    np.testing.assert_array_equal(found.counts, counts[1])
    np.testing.assert_array_equal(found.edges[1], edges[1])


def test_rewind_takes_columns_away(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        for step in range(10):
            writer.write([Column(step, "p", 1.0, parts=Numbers(NAMES, np.ones(3)))])
            writer.write([Column(step, "h", parts=histograms([[1, 1], [1, 1], [1, 1]]))])
        writer.rewind(6)
        writer.write([Column(6, "h", parts=histograms([[7, 7], [7, 7], [7, 7]]))])
    run = Run(tmp_path)
    assert run.series("p", "a.bias").steps.tolist() == list(range(6))
    assert run.series("h", "a.bias").steps.tolist() == list(range(7))
    assert [h.counts[0] for h in run.series("h", "a.bias").values] == [1] * 6 + [7]  # type: ignore[union-attr]


def test_a_continued_run_knows_which_came_last(tmp_path: Path) -> None:
    """One sequence for arrays and blocks, also in a later process."""
    write(tmp_path, [Column(k, "h", parts=histograms([[1, 1], [1, 1], [1, 1]])) for k in range(3)])
    run = write(tmp_path, [Record(1, "h", Histogram(np.array([9, 9]), EDGES), "a.bias")])
    assert [h.counts[0] for h in run.series("h", "a.bias").values] == [1, 9, 1]  # type: ignore[union-attr]
    run = write(tmp_path, [Column(1, "h", parts=histograms([[8, 8], [8, 8], [8, 8]]))])
    assert [h.counts[0] for h in run.series("h", "a.bias").values] == [1, 8, 1]  # type: ignore[union-attr]


def test_columns_that_cannot_be_stored_do_not_take_others_with_them(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    bad = [
        Column(0, "surrogate\ud800", 1.0, parts=Numbers(NAMES, np.ones(3))),
        Column(2**70, "far", parts=Numbers(NAMES, np.ones(3))),
        Column(0, "twice", parts=Numbers(("w", "w"), np.ones(2))),
        Column(0, "none", "five"),  # type: ignore[arg-type]
    ]
    good = [Column(step, "p", 1.0, parts=Numbers(NAMES, np.ones(3))) for step in range(2)]
    writer.write([good[0], *bad, good[1]])
    with pytest.warns(RuntimeWarning, match="10 records cannot be stored"):
        assert writer.flush()
    assert writer.acknowledged == 8
    writer.close()
    run = Run(tmp_path)
    assert len(run.series("p", "b.weight")) == 2
    assert len(run.events("refused")) == 1


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [
        (Columns((0, 2**70), "p", [1.0, 2.0]), [0]),
        (Columns((0, 1), "p", [1.0, "no number"]), [0]),  # type: ignore[list-item]
        (Columns((0, 1), "p", [1.0, 2.0], None, (("w", "w"), np.ones((2, 2)))), []),
    ],
    ids=["a step too far", "no number", "a parameter twice"],
)
def test_one_step_that_cannot_be_stored_does_not_take_others_with_it(
    wrong: Columns, kept: list[int], tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match="cannot be stored"):
        run = write(tmp_path, [wrong, Columns((0, 1), "q", [3.0, 4.0])])
    assert run.series("q").steps.tolist() == [0, 1]
    assert run.series("p").steps.tolist() == kept
