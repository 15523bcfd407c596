"""Reading series for instruments: cut, joined, thinned out, and in words."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.instruments import traces
from cockpit.instruments.chart import Line, View
from cockpit.instruments.instrument import Missing
from cockpit.instruments.traces import Trace, axis, number, trace
from cockpit.store.record import Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0])
QKV = "blocks.0.attention.qkv"


def made(values: list[float], steps: list[int] | None = None, status: list[str] | None = None) -> Trace:
    at = np.arange(len(values)) if steps is None else np.array(steps)
    return Trace("loss", at, np.array(values, dtype=np.float64), status or ["ok"] * len(values))


@given(st.lists(NUMBERS, min_size=1, max_size=400), st.integers(8, 60))
@settings(max_examples=150, deadline=None)
def test_a_line_keeps_extremes_and_both_ends(values: list[float], points: int) -> None:
    line = made(values).line("x", View(points=points))
    assert len(line.x) <= max(points, 8)
    assert (np.diff(line.x) > 0).all()
    assert not np.isinf(line.y).any()
    there = np.array(values)
    finite = there[np.isfinite(there)]
    if len(finite):
        kept = line.y[np.isfinite(line.y)]
        assert kept.min() == finite.min()
        assert kept.max() == finite.max()
        assert (kept[0], kept[-1]) == (finite[0], finite[-1])
    else:
        assert np.isnan(line.y).all()


def test_a_single_nan_does_not_hide_a_peak_nor_break_a_long_line() -> None:
    values = np.zeros(10_000)
    values[5_000], values[5_001] = np.nan, 7.0
    line = Trace("loss", np.arange(10_000), values, ["ok"] * 10_000).line("x", View(points=100))
    assert line.y.max() == 7.0
    assert not np.isnan(line.y).any()


def test_a_long_stretch_without_numbers_stays_a_gap() -> None:
    values = np.ones(10_000)
    values[3_000:4_000] = np.nan
    line = Trace("loss", np.arange(10_000), values, ["ok"] * 10_000).line("x", View(points=100))
    assert np.isnan(line.y).sum() == 1
    assert 3_000 <= line.x[np.isnan(line.y)][0] < 4_000


@given(st.lists(NUMBERS, min_size=1, max_size=300))
@settings(max_examples=100, deadline=None)
def test_ticks_stand_for_every_value_that_is_not_finite(values: list[float]) -> None:
    bad = [k for k, value in enumerate(values) if not np.isfinite(value)]
    found = made(values).ticks()
    assert bool(found) == bool(bad)
    if found:
        assert found[0].at[0] == bad[0]
        assert set(found[0].at.tolist()) <= set(bad)
        assert len(found[0].at) <= traces.GROUPS


def test_ticks_say_what_was_wrong() -> None:
    nan = float("nan")
    status = ["ok", "zero_gradient: the mean gradient vanishes", "nonfinite: NaN", "nonfinite: NaN", "ok"]
    (ticks,) = made([1.0, nan, nan, nan, 2.0], [0, 5, 10, 15, 20], status).ticks()
    assert ticks.texts == ("steps 5–15 (3), loss: zero_gradient: the mean gradient vanishes",)
    (ticks,) = made([1.0, nan, 1.0], [0, 5, 10], ["ok", "ok", "ok"]).ticks()
    assert ticks.texts == ("step 5, loss: not finite",)


def test_steps_that_were_not_recorded(gap: Run) -> None:
    found = trace(run=gap, name="loss", view=View())
    line = found.line("loss", View())
    assert np.isnan(line.y).sum() == 1
    assert 39 < line.x[np.isnan(line.y)][0] < 50
    (ticks,) = found.ticks()
    assert ticks.texts == ("no loss between steps 39 and 50",)


@pytest.mark.parametrize(
    "steps",
    [
        [0, 1, 10, 11, 20, 21, 30, 31, 40, 41],  # two in a row, every ten
        [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        [0, 100, 101, 102],
        list(range(0, 500, 7)),
    ],
)
def test_schedules_are_no_gaps(steps: list[int]) -> None:
    found = made([1.0] * len(steps), steps)
    assert not found.ticks()
    assert len(found.line("x", View()).x) == len(steps)


def test_notes_count_statuses_by_kind() -> None:
    status = ["ok", "estimated: ggn_mc", "estimated: ggn_mc", "not_converged: a", "not_converged: b"]
    assert made([1.0] * 5, status=status).notes("here: ") == (
        "here: estimated: ggn_mc at 2 of 5 steps",
        "here: not_converged (for example: a) at 2 of 5 steps",
    )
    long = Trace("loss", np.arange(30_000), np.ones(30_000), (["odd: x"] * 3 + ["ok"] * 7) * 3_000)
    assert long.notes() == ("odd: x at 9000 of 30000 steps",)


def test_only_what_is_shown_is_counted(tmp_path: Path) -> None:
    status = ["ok", "ok", "odd: x", "odd: x"]
    assert made([1.0] * 4, status=status).until(1).notes() == ()
    with Writer(tmp_path) as writer:
        writer.write([Record(step, "loss", 1.0, status=text) for step, text in enumerate(status)])
    found = trace(Run(tmp_path), "loss", View(first=1, last=2))
    assert found.notes() == ("odd: x at 1 of 2 steps",)
    assert len(found.status) == 2


def test_the_moment_is_the_nearest_at_or_before() -> None:
    found = made([1.0, 2.0, 3.0], [10, 20, 30])
    assert [found.values[found.place(step)] for step in (None, 35, 30, 29, 20, 9)] == [3, 3, 3, 2, 2, 1]
    assert found.until(25).steps.tolist() == [10, 20]
    assert found.until(3).steps.tolist() == [10]
    assert found.reading("x", 25).text == "2"


def test_a_reading_says_why_there_is_no_number() -> None:
    nan = float("nan")
    assert made([nan], status=["concave: no minimum"]).reading("x").text == "concave"
    assert made([nan], status=["nonfinite: NaN"]).reading("x").text == "not finite"
    assert made([nan]).reading("x").text == "not finite"
    assert made([2.0], status=["not_converged: x"]).reading("x").text == "2"


@pytest.mark.parametrize("name", ["grad_norm", "distance", "update_size"])
def test_norms_of_all_layers_make_up_the_models(name: str, run: Run) -> None:
    whole = trace(run, name, View(), "norms")
    tops = [trace(run, name, View(scope=top), "norms") for top in ("embed", "blocks", "head")]
    total = np.sqrt(sum(part.values**2 for part in tops))
    np.testing.assert_allclose(total, whole.values, rtol=1e-12)


@pytest.mark.parametrize("name", ["hess_trace", "tic_diag", "cabs"])
def test_sums_of_all_layers_make_up_the_models(name: str, run: Run) -> None:
    whole = trace(run, name, View(), "sums")
    parts = [trace(run, name, View(scope=top), "sums") for top in ("embed", "blocks", "head")]
    np.testing.assert_allclose(sum(part.values for part in parts), whole.values, rtol=1e-12)


def test_a_layer_of_what_does_not_add_up(run: Run) -> None:
    with pytest.raises(Missing, match=rf"Choose one of: {QKV}.weight, {QKV}.bias"):
        trace(run, "norm_test", View(scope=QKV))
    assert len(trace(run, "norm_test", View(scope=f"{QKV}.weight")).steps) == 120


def test_a_name_that_only_begins_alike_is_no_layer(run: Run) -> None:
    with pytest.raises(Missing, match=re.escape("'blocks.0.att'")):
        trace(run, "grad_norm", View(scope="blocks.0.att"), "norms")


def test_parameters_recorded_at_different_steps(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([Record(step, "grad_norm", 3.0, "a.weight") for step in range(6)])
        writer.write([Record(step, "grad_norm", 4.0, "a.bias", "odd: x") for step in range(2, 9)])
        writer.write(
            [Record(3, "grad_norm", 3.0, "a.weight", "worse"), Record(4, "grad_norm", 4.0, "a.bias")]
        )
    found = trace(Run(tmp_path), "grad_norm", View(scope="a"), "norms")
    assert found.steps.tolist() == [2, 3, 4, 5]
    assert found.values.tolist() == [5.0] * 4
    assert list(found.status) == ["odd: x", "worse", "ok", "odd: x"]  # the first parameter's that is not ok
    assert sorted(found.notes()) == ["odd: x at 2 of 4 steps", "worse at 1 of 4 steps"]


def test_axes() -> None:
    def line(*values: float) -> Line:
        return Line("x", np.arange(len(values), dtype=np.float64), np.array(values))

    assert axis("y", line(1, 2, 3)).scale == "linear"
    assert axis("y", line(1, 2, 3), log=True).scale == "log"
    assert axis("y", line(1, 1, 1e5, 1e5)).scale == "log"
    assert axis("y", line(-1, 2, 3), log=True).scale == "symlog"
    assert axis("y", line(1, 1, 1e5, 1e5), line(-1.0)).scale == "symlog"
    assert axis("y", line(*[1.0] * 200, 1e5)).scale == "linear"  # one spike does not squeeze the rest
    assert axis("y", line(float("nan"))).scale == "linear"
    assert axis("y", line(0.0, 0.0), log=True).scale == "linear"


def test_numbers_in_words() -> None:
    assert doctest.testmod(traces) == (0, 1)
    assert number(0.5, "+.2f") == "+0.50"
    assert traces.share(0.9999) == "100 %"
