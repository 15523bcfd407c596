"""What holds for every instrument, ours and those of plugins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cockpit.instruments.chart import Bars, Chart, Heat, Line, Ticks, View
from cockpit.instruments.screens import SCREENS
from cockpit.instruments.shelf import all_instruments, instrument
from cockpit.render.page import chart_json
from cockpit.store.record import Column
from cockpit.store.run import Run
from cockpit.store.writer import Writer

NAMES = sorted(all_instruments())
LAYER = "blocks.0.attention.qkv.weight"


def checked(chart: Chart) -> Chart:
    """Check what any renderer relies on."""
    text = json.dumps(chart_json(chart), allow_nan=False)
    assert json.loads(text)["name"] == chart.name
    assert bool(chart.plots) != bool(chart.missing), chart.missing
    for plot in chart.plots:
        assert plot.marks
        for mark in plot.marks:
            if isinstance(mark, Line):
                assert mark.x.shape == mark.y.shape
                assert (np.diff(mark.x) > 0).all()
                assert not mark.right or plot.right is not None
            if isinstance(mark, Bars):
                assert len(mark.edges) == len(mark.heights) + 1
            if isinstance(mark, Heat):
                assert mark.values.shape == (len(mark.y) - 1, len(mark.x) - 1)
            if isinstance(mark, Ticks):
                assert len(mark.at) == len(mark.texts) > 0
        for axis in (plot.x, plot.y):
            assert not axis.names or axis.range == (0.0, len(axis.names))
    assert [plot.place for plot in chart.plots].count("main") == bool(chart.plots)
    assert all(reading.text for reading in chart.readings)
    return chart


@pytest.mark.parametrize("name", NAMES)
def test_it_explains_itself(name: str) -> None:
    one = instrument(name)
    assert one.name == name
    assert one.title
    assert one.question.endswith("?")
    assert one.summary.endswith(".")
    assert one.reads
    assert set(one.optional) <= set(one.reads)
    assert len(one.reading.split("\n\n")) >= 2
    assert all(30 < len(part) < 500 for part in one.reading.split("\n\n"))


def test_every_instrument_stands_on_a_screen() -> None:
    shown = [
        name for screen in SCREENS for row in screen.rows for column in row for name in column.instruments
    ]
    assert sorted(shown) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_healthy_run(name: str, run: Run) -> None:
    chart = checked(instrument(name).chart(run))
    assert chart.plots
    assert (chart.step is not None) == instrument(name).moment
    assert chart.step in (None, 119)


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_not_finite(name: str, broken: Run) -> None:
    checked(instrument(name).chart(broken))
    early = checked(instrument(name).chart(broken, View(step=10)))
    assert early.step in (None, 10)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_has_just_begun(name: str, empty: Run) -> None:
    chart = checked(instrument(name).chart(empty))
    missing = instrument(name).reads[0]
    assert f'"{missing}"' in chart.missing


@pytest.mark.parametrize("name", NAMES)
def test_missing_quantity_is_named(name: str, bare: Run) -> None:
    one = instrument(name)
    chart = checked(one.chart(bare))
    if name in ("hyperparameter_gauge", "performance_gauge"):
        assert chart.plots
    else:
        needed = [q for q in one.reads if q not in one.optional] or one.reads[:1]
        assert all(f'"{q}"' in chart.missing for q in needed)
        assert "Cockpit(" in chart.missing


def test_how_to_turn_it_on(bare: Run) -> None:
    assert 'Cockpit(config="economy")' in instrument("grad_norm_gauge").chart(bare).missing
    assert 'Cockpit(config="full")' in instrument("max_ev_gauge").chart(bare).missing
    assert "Cockpit(quantities=['cabs', …])" in instrument("cabs_gauge").chart(bare).missing


@pytest.mark.parametrize("name", NAMES)
def test_one_step_only(name: str, single: Run) -> None:
    assert checked(instrument(name).chart(single)).plots


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", [View(first=30, last=60), View(first=500), View(points=5), View(last=-1)])
def test_cut(name: str, view: View, run: Run) -> None:
    chart = checked(instrument(name).chart(run, view))
    low = view.first or 0
    high = 119.0 if view.last is None else view.last
    for plot in chart.plots:
        for mark in plot.marks:
            if isinstance(mark, Line) and plot.x.steps and len(mark.x):
                assert low <= mark.x.min() <= mark.x.max() <= high
                assert len(mark.x) <= max(8, view.points)


@pytest.mark.parametrize("name", [name for name in NAMES if instrument(name).layered])
def test_single_parameter(name: str, run: Run) -> None:
    one = instrument(name)
    chart = checked(one.chart(run, View(scope=LAYER)))
    assert chart.scope == LAYER
    if name == "max_ev_gauge":  # only with by_parameter=True
        assert LAYER in chart.missing
        assert "HessMaxEV(by_parameter=True)" in chart.missing
    else:
        assert chart.plots


@pytest.mark.parametrize("name", [name for name in NAMES if instrument(name).layered])
def test_unknown_scope_is_said(name: str, run: Run) -> None:
    assert "'nowhere'" in checked(instrument(name).chart(run, View(scope="nowhere"))).missing


@pytest.mark.parametrize("name", [name for name in NAMES if not instrument(name).layered])
def test_others_show_the_model_whatever_the_scope(name: str, run: Run) -> None:
    chart = checked(instrument(name).chart(run, View(scope="nowhere")))
    assert chart.plots
    assert chart.scope == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_quantity_that_failed_throughout(name: str, tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        for step in range(4):
            status = "failed: ValueError: no"
            writer.write([Column(step, q, float("nan"), status) for q in instrument(name).reads])
    chart = checked(instrument(name).chart(Run(tmp_path)))
    assert chart.missing or any("failed" in note for note in chart.notes) or name == "hyperparameter_gauge"
