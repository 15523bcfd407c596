"""Histograms at a moment, and the gauges that draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.instruments.chart import Bars, Heat, View
from cockpit.instruments.histograms import middle_share, moment, whole
from cockpit.instruments.instrument import Missing
from cockpit.instruments.shelf import instrument
from cockpit.store.record import Column, Histogram
from cockpit.store.run import Run
from cockpit.store.series import Series
from cockpit.store.writer import Writer
from instruments.charts import mark, reading

EDGES = np.linspace(-1, 1, 5)


class Steps:
    """Answers for one series of histograms like a run, and counts the questions."""

    def __init__(self, steps: list[int]):
        self.steps, self.asked = np.array(steps, dtype=np.int64), 0

    def series(self, name: str, scope: str = "", since: int = 0, points: int | None = None) -> Series:
        self.asked += 1
        steps = self.steps[self.steps >= since]
        if points is not None and len(steps) > points:
            steps = steps[np.linspace(0, len(steps) - 1, points).astype(int)]
        values: list[Any] = [Histogram(np.array([step, 0, 0, 0]), EDGES) for step in steps.tolist()]
        return Series(name, scope, steps, values, ["ok"] * len(steps))


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=60), st.none() | st.integers(0, 3100))
@settings(max_examples=200, deadline=None)
def test_nearest_at_or_before(steps: set[int], step: int | None) -> None:
    there = sorted(steps)
    before = [one for one in there if step is None or one <= step]
    found = moment(Steps(there), "h", "", step)  # type: ignore[arg-type]
    assert found.step == (before[-1] if before else there[0])
    assert found.value is not None
    assert found.value.counts[0] == found.step


def test_few_questions_in_a_long_run() -> None:
    run = Steps(list(range(0, 10**6, 1000)))
    assert moment(run, "h", "", 777_777).step == 777_000  # type: ignore[arg-type]
    assert run.asked < 25
    run.asked = 0
    assert moment(run, "h", "", 777_000).step == 777_000  # type: ignore[arg-type]
    assert run.asked == 1


def test_none_at_all() -> None:
    for step in (None, 3):
        with pytest.raises(Missing, match='no "h" so far'):
            moment(Steps([]), "h", "", step)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["grad_hist1d", "grad_hist2d"])
def test_layers_add_up_to_the_model(name: str, run: Run) -> None:
    model = whole(run, name, View()).value
    parts = [whole(run, name, View(scope=top)).value for top in ("embed", "blocks", "head")]
    assert model is not None
    np.testing.assert_array_equal(sum(part.counts for part in parts if part), model.counts)


def test_gauge_of_one_axis(run: Run) -> None:
    chart = instrument("histogram1d_gauge").chart(run, View(step=50))
    stored = run.series("grad_hist1d", since=50, points=1).values[0]
    assert isinstance(stored, Histogram)
    bars = mark(chart, Bars)
    np.testing.assert_array_equal(bars.heights, stored.counts)
    np.testing.assert_array_equal(bars.edges, stored.edges)
    assert chart.step == 50
    assert chart.plots[0].y.scale == "log"
    assert reading(chart, "outside of the range").value == 0


def test_gauge_of_two_axes_has_positive_gradients_up(tmp_path: Path) -> None:
    counts = np.zeros((4, 3), np.int64)
    counts[3, 0] = 5  # the largest gradients, the smallest parameters
    with Writer(tmp_path) as writer:
        writer.write(
            [Column(0, "grad_hist2d", Histogram(counts, (EDGES, np.linspace(-2, 2, 4)), 1, 2, 3, 4))]
        )
    chart = instrument("histogram2d_gauge").chart(Run(tmp_path))
    heat = mark(chart, Heat)
    assert heat.values[-1, 0] == 5
    assert (heat.y[-1], heat.x[0]) == (1.0, -2.0)
    assert mark(chart, Bars, place="top").heights.tolist() == [5, 0, 0]
    right = mark(chart, Bars, place="right")
    assert right.flat
    assert right.heights.tolist() == [0, 0, 0, 5]
    assert reading(chart, "outside of the range").value == 3 / 15
    assert reading(chart, "not finite").value == 7 / 15
    assert "3 elements are NaN, 4 are infinite" in chart.notes


def test_nothing_finite(broken: Run) -> None:
    chart = instrument("histogram1d_gauge").chart(broken)
    assert reading(chart, "not finite").text == "100 %"
    assert not any("middle" in one.label for one in chart.readings)


def test_a_range_that_is_too_wide_is_said(dead: Run) -> None:
    layer = "blocks.0.mlp.up.weight"
    chart = instrument("histogram1d_gauge").chart(dead, View(scope=layer))
    assert any("a smaller range would show more" in note for note in chart.notes)


def test_a_gap_where_a_histogram_should_be(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([Column(0, "grad_hist1d", Histogram(np.ones(4, np.int64), EDGES))])
        writer.write([Column(1, "grad_hist1d", float("nan"), "not_covered: no formula")])
    gauge = instrument("histogram1d_gauge")
    assert "not_covered: no formula" in gauge.chart(Run(tmp_path)).missing
    assert gauge.chart(Run(tmp_path), View(step=0)).plots


def test_middle() -> None:
    assert middle_share(np.array([1, 1, 1, 1])) == 0.5
    assert middle_share(np.array([0, 3, 3, 0])) == 1.0
    assert middle_share(np.array([0, 0])) == 0.0
    assert middle_share(np.array([4])) == 1.0
