"""A run at a glance."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cockpit.instruments.chart import Axis, Bars, Chart, Heat, Line, Plot, View
from cockpit.instruments.shelf import instrument
from cockpit.render.panel import panel
from cockpit.render.status import WAITING, chart_of, course, rows, status
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "fake", steps=60, parameters=4)


def test_course_of_any_chart() -> None:
    x, y = np.arange(3.0), np.array([1.0, 100.0, -1.0])
    over_steps = Plot((Line("", x, y),), x=Axis(steps=True), y=Axis(scale="log"))
    shape = Plot(
        (Line("parabola", x, x), Bars("", np.arange(4.0), y, right=True)), right=Axis(scale="symlog")
    )
    heat = Plot((Heat("", x, x, np.array([[1.0, 2.0], [3.0, np.nan]])),))

    def drawn(*plots: Plot) -> list[float]:
        return course(Chart("n", "t", "q", plots)).tolist()

    assert drawn(replace(shape, place="top"), over_steps)[:2] == [0.0, 2.0]
    assert np.isnan(drawn(over_steps)[2])
    assert drawn(shape) == pytest.approx(np.arcsinh(y).tolist())
    assert drawn(heat) == [4.0, 2.0]
    assert drawn() == []


def test_failing_instrument_says_so(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Chart:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(type(instrument("alpha_gauge")), "draw", fail)
    drawn = chart_of(Run(finished), "alpha_gauge", View(scope="s"))
    assert drawn.missing == "This instrument could not be drawn: ZeroDivisionError: by zero"
    assert (drawn.title, drawn.scope, drawn.plots) == ("Alpha Distribution", "s", ())


def test_status_of_a_run(finished: Path) -> None:
    now = status(Run(finished), time.time())
    assert (now.name, now.life, now.step) == ("fake", "finished", 59)
    assert len(now.rows) == 11
    assert not any(row.missing for row in now.rows)
    assert all(row.reading and len(row.course) > 1 for row in now.rows)
    assert now.loss == pytest.approx(Run(finished).series("loss").values[-1])


def test_note_says_what_the_reading_is(finished: Path) -> None:
    notes = {row.name: row.note for row in rows(Run(finished))}
    assert notes["gradient_tests_gauge"].startswith("norm test; inner product test ")
    assert notes["grad_norm_gauge"] == "How steep is the wall?"  # the reading is what the title says


def test_note_says_how_to_turn_it_on(tmp_path: Path) -> None:
    notes = {row.name: row.note for row in rows(Run(fake_run(tmp_path / "r", steps=5, quantities=["loss"])))}
    assert "hess_trace" in notes["trace_gauge"]
    assert "Cockpit(" in notes["trace_gauge"]


def test_status_of_a_run_without_anything(tmp_path: Path) -> None:
    Writer(tmp_path, {}).close()
    now = status(Run(tmp_path), time.time())
    assert (now.step, now.rate, now.loss) == (None, None, None)
    assert all(row.missing and row.note == WAITING for row in now.rows)
    assert panel(now, 80, 24)
