"""What single gauges draw, by their own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.instruments.chart import Band, Bars, Disc, Guide, Line, Ticks, View, Zone
from cockpit.instruments.shelf import instrument
from cockpit.store.record import Column, Event, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from instruments.charts import mark, marks, reading

SGD = {"optimizer": "SGD", "hyperparameters": [{"lr": 0.1, "momentum": 0.0, "nesterov": False}]}


def written(folder: Path, meta: dict[str, Any] | None = None, **series: list[float]) -> Run:
    """A run with the series given."""
    with Writer(folder, meta) as writer:
        for name, values in series.items():
            writer.write([Column(step, name, float(value)) for step, value in enumerate(values)])
    return Run(folder)


class TestAlpha:
    def test_all_steps_and_the_last_tenth(self, tmp_path: Path) -> None:
        run = written(tmp_path, alpha=[-0.45] * 90 + [0.55] * 10)
        chart = instrument("alpha_gauge").chart(run)
        every, last = mark(chart, Bars, "all steps"), mark(chart, Bars, "last 10 %")
        assert every.right
        assert every.heights.sum() == pytest.approx(1.0)
        assert last.heights.sum() == pytest.approx(1.0)
        assert every.heights.max() == pytest.approx(0.9)
        assert last.edges[last.heights.argmax()] <= 0.55 <= last.edges[last.heights.argmax() + 1]
        assert reading(chart, "mean").value == pytest.approx(-0.35)
        assert reading(chart, "last 10 %").text == "+0.55"

    def test_up_to_the_moment(self, tmp_path: Path) -> None:
        run = written(tmp_path, alpha=[-0.45] * 50 + [0.55] * 50)
        chart = instrument("alpha_gauge").chart(run, View(step=49))
        assert chart.step == 49
        assert reading(chart, "mean").value == pytest.approx(-0.45)

    def test_fewer_than_ten_values_have_no_last_tenth(self, tmp_path: Path) -> None:
        chart = instrument("alpha_gauge").chart(written(tmp_path, alpha=[0.1] * 9))
        assert [bars.label for bars in marks(chart, Bars)] == ["all steps"]

    def test_concave_steps_are_counted_not_drawn(self, tmp_path: Path) -> None:
        with Writer(tmp_path) as writer:
            for step in range(8):
                status = "concave: no minimum" if step % 4 == 0 else "ok"
                writer.write([Column(step, "alpha", float("nan") if step % 4 == 0 else 0.3, status)])
        chart = instrument("alpha_gauge").chart(Run(tmp_path))
        assert reading(chart, "concave").text == "25 %"
        assert reading(chart, "mean").value == pytest.approx(0.3)
        assert "concave: no minimum at 2 of 8 steps" in chart.notes

    def test_values_outside_are_named(self, tmp_path: Path) -> None:
        chart = instrument("alpha_gauge").chart(written(tmp_path, alpha=[0.0, 5.0, -3.0]))
        assert chart.notes == ("2 of 3 values lie outside of what is shown, from −3 to 5",)

    def test_landmarks(self, run: Run) -> None:
        chart = instrument("alpha_gauge").chart(run)
        words = {guide.at: guide.label for guide in marks(chart, Guide)}
        assert (words[-1.0], words[0.0], words[1.0]) == ("start", "minimum", "as high again")
        parabola = mark(chart, Line)
        np.testing.assert_allclose(parabola.y, parabola.x**2)


class TestGradientTests:
    def test_shapes_at_a_moment(self, tmp_path: Path) -> None:
        run = written(tmp_path, norm_test=[0.5, 5.0], inner_test=[0.3, 3.0], ortho_test=[0.4, 4.0])
        chart = instrument("gradient_tests_gauge").chart(run, View(step=0))
        assert mark(chart, Disc).radius == 0.5
        assert {(zone.axis, zone.high) for zone in marks(chart, Zone)} == {("y", 0.3), ("x", 0.4)}
        assert chart.plots[0].upright
        assert chart.plots[0].x.range == (-2.0, 2.0)
        later = instrument("gradient_tests_gauge").chart(run)
        assert later.plots[0].x.range == (-6.5, 6.5)

    def test_thresholds(self, run: Run) -> None:
        chart = instrument("gradient_tests_gauge").chart(run)
        found = {place: mark(chart, Guide, place=place).at for place in ("left", "below", "top")}
        assert found == {"left": 0.9, "below": 0.9, "top": 5.84}

    def test_one_schedule_each(self, tmp_path: Path) -> None:
        with Writer(tmp_path) as writer:
            for k, name in enumerate(("norm_test", "inner_test", "ortho_test")):
                writer.write([Column(step, name, 1.0) for step in range(k, 20, 3)])
        assert "same step" in instrument("gradient_tests_gauge").chart(Run(tmp_path)).missing

    def test_the_last_step_that_all_have(self, tmp_path: Path) -> None:
        with Writer(tmp_path) as writer:
            for name, every in (("norm_test", 1), ("inner_test", 2), ("ortho_test", 3)):
                writer.write([Column(step, name, float(step)) for step in range(0, 20, every)])
        chart = instrument("gradient_tests_gauge").chart(Run(tmp_path), View(step=17))
        assert chart.step == 12
        assert {one.value for one in chart.readings} == {12.0}


class TestMaxEigenvalue:
    def test_bound_of_a_constant_rate(self, tmp_path: Path) -> None:
        run = written(tmp_path, SGD, hess_max_ev=[1, 2, 3], learning_rate=[0.1] * 3)
        chart = instrument("max_ev_gauge").chart(run)
        assert mark(chart, Guide).at == pytest.approx(20.0)
        assert reading(chart, "stability bound").text == "20"

    @pytest.mark.parametrize(("nesterov", "bound"), [(False, 38.0), (True, 38.0 / 2.8)])
    def test_momentum_moves_it(self, nesterov: bool, bound: float, tmp_path: Path) -> None:
        meta = SGD | {"hyperparameters": [{"momentum": 0.9, "nesterov": nesterov}]}
        run = written(tmp_path, meta, hess_max_ev=[1, 2], learning_rate=[0.1] * 2)
        assert mark(instrument("max_ev_gauge").chart(run), Guide).at == pytest.approx(bound)

    @pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
    @pytest.mark.parametrize("nesterov", [False, True])
    def test_it_is_where_steps_begin_to_grow(self, beta: float, nesterov: bool, tmp_path: Path) -> None:
        """Descend a parabola with a curvature just below and just above the bound."""
        meta = SGD | {"hyperparameters": [{"momentum": beta, "nesterov": nesterov}]}
        run = written(tmp_path, meta, hess_max_ev=[1.0], learning_rate=[0.1])
        bound = mark(instrument("max_ev_gauge").chart(run), Guide).at
        for curvature, grows in ((0.99 * bound, False), (1.01 * bound, True)):
            position, velocity = 1.0, 0.0
            for _ in range(3000):
                slope = curvature * position
                velocity = beta * velocity + slope
                position -= 0.1 * (slope + beta * velocity if nesterov else velocity)
            assert (abs(position) > 1) == grows

    def test_a_rate_that_changes_gives_a_curve(self, tmp_path: Path) -> None:
        run = written(tmp_path, SGD, hess_max_ev=[1, 2, 3], learning_rate=[0.1, 0.2, 1e-9])
        chart = instrument("max_ev_gauge").chart(run)
        bound = mark(chart, Line, "2/lr")
        assert bound.dashed
        np.testing.assert_allclose(bound.y, [20.0, 10.0, np.nan])  # far away is left out

    def test_no_bound_for_other_optimisers(self, tmp_path: Path) -> None:
        run = written(tmp_path, {"optimizer": "Adam"}, hess_max_ev=[1.0], learning_rate=[0.1])
        assert not marks(instrument("max_ev_gauge").chart(run), Guide)

    def test_negative_values_stay_visible(self, tmp_path: Path) -> None:
        chart = instrument("max_ev_gauge").chart(written(tmp_path, hess_max_ev=[-5.0, 1.0, 2.0]))
        assert chart.plots[0].y.scale == "symlog"
        positive = instrument("max_ev_gauge").chart(written(tmp_path / "b", hess_max_ev=[5.0, 1.0, 2.0]))
        assert positive.plots[0].y.scale == "log"


def test_trace_with_its_error(run: Run, tmp_path: Path) -> None:
    chart = instrument("trace_gauge").chart(run)
    band, line = mark(chart, Band), mark(chart, Line)
    np.testing.assert_allclose((band.high - band.low) / 2, 0.08 * line.y)
    exact = written(tmp_path, **{"hess_trace": [1, 2], "hess_trace.standard_error": [0, 0]})
    assert not marks(instrument("trace_gauge").chart(exact), Band)
    assert not marks(instrument("trace_gauge").chart(run, View(scope="head")), Band)


@pytest.mark.parametrize("name", ["tic_gauge", "distance_gauge"])
def test_one_of_two_is_enough(name: str, tmp_path: Path) -> None:
    gauge = instrument(name)
    for k, quantity in enumerate(gauge.reads):
        chart = gauge.chart(written(tmp_path / str(k), **{quantity: [1.0, 2.0]}))
        assert not mark(chart, Line).right
        assert chart.plots[0].right is None
    both = gauge.chart(written(tmp_path / "both", **{one: [1.0, 2.0] for one in gauge.reads}))
    assert [line.right for line in marks(both, Line)] == [False, True]
    assert both.plots[0].right is not None


class TestPerformance:
    def test_losses_left_accuracies_right(self, tmp_path: Path) -> None:
        run = written(tmp_path, loss=[2, 1], valid_loss=[3, 2], valid_accuracy=[0.5, 0.75])
        chart = instrument("performance_gauge").chart(run)
        assert {line.label: line.right for line in marks(chart, Line)} == {
            "mini-batch loss": False,
            "validation loss": False,
            "validation accuracy": True,
        }
        assert chart.plots[0].right is not None
        assert chart.plots[0].right.range == (0.0, 1.0)
        assert reading(chart, "validation accuracy").text == "75 %"

    def test_names_of_other_habits(self, tmp_path: Path) -> None:
        logged = {
            "val_loss": [1.0],
            "train_acc": [0.5],
            "eval_accuracy": [0.5],
            "gloss": [1.0],
            "loss.x": [1.0],
        }
        chart = instrument("performance_gauge").chart(written(tmp_path, loss=[2.0], **logged))
        assert [(line.label, line.right) for line in marks(chart, Line)] == [
            ("mini-batch loss", False),
            ("validation loss", False),
            ("training accuracy", True),
            ("evaluation accuracy", True),
        ]

    def test_without_a_loss(self, tmp_path: Path) -> None:
        chart = instrument("performance_gauge").chart(written(tmp_path, test_accuracy=[0.5]))
        assert [line.label for line in marks(chart, Line)] == ["test accuracy"]

    def test_what_happened(self, tmp_path: Path) -> None:
        with Writer(tmp_path) as writer:
            writer.write([Column(step, "loss", 1.0) for step in range(20)])
            writer.event(Event(5, "resumed", "the run is continued from step 5"))
            writer.event(Event(15, "step_skipped", "inf"))
        chart = instrument("performance_gauge").chart(Run(tmp_path), View(first=0, last=10))
        assert mark(chart, Ticks, "events").texts == ("step 5, resumed: the run is continued from step 5",)

    def test_ticks_of_all_losses_are_one_mark(self, tmp_path: Path) -> None:
        run = written(tmp_path, loss=[1, float("nan")], train_loss=[float("nan"), 1])
        (ticks,) = marks(instrument("performance_gauge").chart(run), Ticks)
        assert ticks.at.tolist() == [1.0, 0.0]


class TestHyperparameters:
    def test_groups(self, tmp_path: Path) -> None:
        with Writer(tmp_path, SGD) as writer:
            for step in range(3):
                writer.write([Record(step, "learning_rate", 0.1)])
                writer.write([Record(step, "learning_rate", 0.1 / (k + 1), f"group_{k}") for k in range(6)])
        chart = instrument("hyperparameter_gauge").chart(Run(tmp_path))
        assert [line.label for line in marks(chart, Line)] == ["group 0", "group 1", "group 2", "group 3"]

    def test_settings(self, tmp_path: Path) -> None:
        groups = [{"lr": 0.1, "momentum": 0.9, "weight_decay": 0, "nesterov": True, "foreach": None}]
        run = written(tmp_path, {"hyperparameters": groups}, learning_rate=[0.1])
        chart = instrument("hyperparameter_gauge").chart(run)
        assert [(one.label, one.text) for one in chart.readings] == [
            ("learning rate", "0.1"),
            ("momentum", "0.9"),
        ]


def test_early_stopping_has_its_line(run: Run) -> None:
    guide = mark(instrument("early_stopping_gauge").chart(run), Guide)
    assert (guide.axis, guide.at) == ("y", 0.0)
