"""Layers: tables, maps, and which of them are conspicuous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.instruments import layer_table
from cockpit.instruments.chart import Bars, Heat, View
from cockpit.instruments.layers import layer_tree
from cockpit.instruments.shelf import instrument
from cockpit.store.record import Column, Numbers
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from cockpit.testing.story import parameter_names
from instruments.charts import mark, reading

DEAD = "blocks.0.mlp.up.weight"


def run_of(
    folder: Path, rows: dict[str, list[float]], shape: tuple[int, ...] = (4,), **more: dict[str, list[float]]
) -> Run:
    """A run with gradient norms (and more quantities) of parameters of one shape."""
    meta = {"parameters": {name: {"shape": list(shape), "trainable": True} for name in rows}}
    with Writer(folder, meta) as writer:
        for quantity, table in ({"grad_norm": rows} | more).items():
            names = tuple(table)
            for step, values in enumerate(zip(*table.values(), strict=True)):
                writer.write([Column(step, quantity, parts=Numbers(names, np.array(values)))])
    return Run(folder)


def by_name(run: Run, step: int | None = None) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in layer_tree(run, step)}


class TestHeat:
    def test_first_layer_on_top(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, {"first.weight": [1.0, 2.0], "last.weight": [3.0, 4.0]})
        chart = instrument("layer_heat").chart(run)
        heat = mark(chart, Heat)
        assert chart.plots[0].y.names == ("last.weight", "first.weight")
        assert heat.values.tolist() == [[3.0, 4.0], [1.0, 2.0]]
        assert heat.x.tolist() == [0.0, 1.0, 2.0]
        assert reading(chart, "smallest, first.weight").value == 2.0

    def test_many_steps_keep_the_largest(self, tmp_path: Path) -> None:
        values = [1.0] * 100
        values[37] = 50.0
        chart = instrument("layer_heat").chart(run_of(tmp_path, {"a": values}), View(points=10))
        heat = mark(chart, Heat)
        assert heat.values.shape == (1, 10)
        assert heat.values.max() == 50.0
        assert (heat.x[0], heat.x[-1]) == (0.0, 100.0)

    def test_holes_and_zeros(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, {"a": [1.0, float("nan"), 1.0], "b": [0.0, 1.0, 1.0]})
        chart = instrument("layer_heat").chart(run)
        heat = mark(chart, Heat)
        np.testing.assert_array_equal(heat.values, [[0.1, 1.0, 1.0], [1.0, np.nan, 1.0]])
        assert len(chart.notes) == 2

    def test_layers_are_put_together(self, tmp_path: Path) -> None:
        run = Run(fake_run(tmp_path, steps=4, parameters=260, quantities=("grad_norm",)))
        chart = instrument("layer_heat").chart(run)
        names = chart.plots[0].y.names
        assert len(names) <= layer_table.ROWS
        assert names[0] == "head"
        assert chart.notes[0].startswith("260 parameters in ")
        total = np.sqrt((mark(chart, Heat).values ** 2).sum(0))
        np.testing.assert_allclose(total, np.asarray(run.series("grad_norm").values))

    def test_a_layer_opens_its_parameters(self, run: Run) -> None:
        names = instrument("layer_heat").chart(run, View(scope="blocks.0.mlp")).plots[0].y.names
        assert set(names) == {
            f"blocks.0.mlp.{part}.{kind}" for part in ("up", "down") for kind in ("weight", "bias")
        }

    def test_flat_names_keep_the_conspicuous(self, tmp_path: Path) -> None:
        rows = {f"p{k}": [1.0, 1.0] for k in range(100)} | {"odd": [1e-9, 1e-9], "bad": [1.0, float("nan")]}
        chart = instrument("layer_heat").chart(run_of(tmp_path, rows))
        names = chart.plots[0].y.names
        assert len(names) == layer_table.ROWS
        assert {"odd", "bad"} <= set(names)
        assert any("most conspicuous of 102" in note for note in chart.notes)

    def test_parameters_that_come_later(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, {"a": [1.0, 1.0]})
        with Writer(tmp_path) as writer:
            writer.write([Column(1, "grad_norm", parts=Numbers(("b",), np.array([2.0])))])
        heat = mark(instrument("layer_heat").chart(run), Heat)
        assert sorted(heat.values[:, 1].tolist()) == [1.0, 2.0]
        assert np.isnan(heat.values[:, 0]).sum() == 1


def test_updates_are_per_element(tmp_path: Path) -> None:
    updates = {"a": [1.0, 3.0]}
    run = run_of(tmp_path, {"a": [1.0, 1.0]}, shape=(4, 25), update_size=updates)
    heat = mark(instrument("layer_updates").chart(run), Heat)
    assert heat.values.tolist() == [[0.1, 0.3]]


def test_norms_at_a_moment(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": [1.0, 1.0, 9.0], "b": [2.0, 2.0, 2.0]})
    chart = instrument("layer_norms").chart(run)
    assert chart.step == 2
    assert mark(chart, Bars, "this step").heights.tolist() == [2.0, 9.0]
    assert mark(chart, Bars, "median").heights.tolist() == [2.0, 1.0]
    assert mark(chart, Bars, "this step").flat
    assert reading(chart, "largest to smallest").value == 4.5
    assert mark(instrument("layer_norms").chart(run, View(step=1)), Bars, "this step").heights.tolist() == [
        2,
        1,
    ]


def test_histograms_of_layers(dead: Run) -> None:
    chart = instrument("layer_histograms").chart(dead, View(step=20))
    assert chart.step == 20
    heat, names = mark(chart, Heat), chart.plots[0].y.names
    np.testing.assert_allclose(heat.values.sum(1), 1.0)
    used = (heat.values > 0).sum(1)
    assert used[names.index(DEAD)] == 2
    assert np.delete(used, names.index(DEAD)).min() > 2
    assert names[::-1] == parameter_names(12)
    assert heat.x[0] == -heat.x[-1]


def test_histograms_of_many_parameters(tmp_path: Path) -> None:
    run = Run(fake_run(tmp_path, steps=2, parameters=150, quantities=("grad_hist1d",)))
    chart = instrument("layer_histograms").chart(run)
    names = chart.plots[0].y.names
    assert len(names) <= layer_table.ROWS
    assert all(name.endswith("weight") for name in names)
    assert "of 150 parameters" in chart.notes[0]


class TestTree:
    def test_shape(self, run: Run) -> None:
        rows = by_name(run)
        assert rows["blocks.0.mlp.up"]["parent"] == "blocks.0.mlp"
        assert rows["blocks"]["parent"] == ""
        assert rows["blocks.0.mlp.up"]["kind"] == "layer"
        assert rows[DEAD]["kind"] == "parameter"
        assert rows[DEAD]["size"] == 256
        assert rows["blocks.0.mlp.up"]["size"] == 272
        assert set(rows) >= set(parameter_names(12))
        assert all(row["parent"] in rows or not row["parent"] for row in rows.values())

    def test_norms_add_up(self, run: Run) -> None:
        rows = by_name(run)
        tops = [rows[name]["grad_norm"] for name in ("embed", "blocks", "head")]
        total = float(np.asarray(run.series("grad_norm").values)[-1])
        assert np.sqrt(sum(value**2 for value in tops)) == pytest.approx(total)

    def test_a_healthy_run_has_nothing_to_show(self, run: Run) -> None:
        rows = layer_tree(run)
        assert {row["score"] for row in rows} == {0.0}
        assert {row["why"] for row in rows} == {""}
        assert rows[0]["name"] == "embed"

    def test_a_dead_parameter_comes_first(self, dead: Run) -> None:
        rows = layer_tree(dead)
        first = [row["name"] for row in rows if row["score"] > 0.5]
        assert first == ["blocks", "blocks.0", "blocks.0.mlp", "blocks.0.mlp.up", DEAD]
        assert rows[0]["why"].startswith(f"{DEAD}: its gradient has vanished")
        assert "middle bins" in rows[0]["why"]
        assert all(row["score"] == 0 for row in rows[5:])

    def test_not_finite(self, broken: Run) -> None:
        rows = layer_tree(broken)
        assert {row["score"] for row in rows} == {1.0}
        assert rows[0]["grad_norm"] is None
        assert {row["score"] for row in layer_tree(broken, step=20)} == {0.0}

    @pytest.mark.parametrize(("value", "word"), [(1e-4, "smaller"), (1e4, "larger")])
    def test_far_from_the_others(self, value: float, word: str, tmp_path: Path) -> None:
        rows = {f"layer{k}.weight": [1.0 + 0.1 * k] * 5 for k in range(8)} | {"odd.weight": [value] * 5}
        tree = by_name(run_of(tmp_path, rows))
        assert f"times {word} than usual here" in tree["odd.weight"]["why"]
        assert tree["layer3.weight"]["score"] == 0

    def test_biases_are_compared_with_biases(self, tmp_path: Path) -> None:
        rows = {f"layer{k}.weight": [1.0] * 5 for k in range(8)}
        rows |= {f"layer{k}.bias": [1e-3] * 5 for k in range(8)}
        assert {row["score"] for row in layer_tree(run_of(tmp_path, rows))} == {0.0}

    def test_no_gradient_and_no_movement(self, tmp_path: Path) -> None:
        rows = {f"p{k}": [1.0, 1.0] for k in range(5)} | {"z": [0.0, 0.0]}
        tree = by_name(run_of(tmp_path, rows))
        assert (tree["z"]["score"], tree["z"]["why"]) == (0.95, "gets no gradient")
        still = {f"p{k}": [0.1, 0.1] for k in range(5)} | {"z": [0.0, 0.0]}
        run = run_of(tmp_path / "b", {name: [1.0, 1.0] for name in rows}, update_size=still)
        assert by_name(run)["z"]["why"] == "does not move"

    def test_a_learning_rate_of_zero_makes_no_layer_conspicuous(self, tmp_path: Path) -> None:
        rows = {f"p{k}": [1.0, 1.0] for k in range(5)}
        run = run_of(tmp_path, rows, update_size={name: [0.0, 0.0] for name in rows})
        assert {row["score"] for row in layer_tree(run)} == {0.0}

    def test_frozen(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, {f"p{k}": [1.0] for k in range(4)})
        parameters = run.meta["parameters"] | {"cold": {"shape": [3], "trainable": False}}
        with Writer(tmp_path, {"parameters": parameters}):
            pass
        row = by_name(run)["cold"]
        assert (row["score"], row["why"], row["grad_norm"], row["update"]) == (0.0, "frozen", None, None)

    def test_nothing_known(self, empty: Run) -> None:
        assert layer_tree(empty) == []
