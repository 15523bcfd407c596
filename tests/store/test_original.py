"""Logs of the original Cockpit become runs, and runs become logs again."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.instruments.layers import layer_tree
from cockpit.instruments.overview import run_page
from cockpit.store.export import to_original
from cockpit.store.original import NAMES, import_original
from cockpit.store.record import Histogram
from cockpit.store.run import Run

GOLDEN = Path(__file__).parents[1] / "golden"


def array(values: list[Any], dtype: str) -> dict[str, Any]:
    found = {"__ndarray__": values, "dtype": dtype, "shape": list(np.shape(values))}
    return found if np.ndim(values) < 2 else {**found, "Corder": True}


def imported(tmp_path: Path, log: str | dict[str, Any]) -> Run:
    path = tmp_path / "log.json"
    path.write_text(log if isinstance(log, str) else json.dumps(log))
    import_original(path, tmp_path / "run")
    return Run(tmp_path / "run")


def test_numbers_lists_and_logged_values(tmp_path: Path) -> None:
    log = {
        "10": {"Loss": 0.5, "GradNorm": [3.0, 4.0], "HessTrace": [1.0, -3.0], "train_loss": 0.4},
        "2": {"Loss": 1, "UpdateSize": [0.0, 2.0], "Alpha": -1, "epoch_count": 0},
        "3": {"Alpha": -1.0, "MyOwn": 7.5, "note": "a text", "CABS": None},
    }
    run = imported(tmp_path, log)
    loss = run.series("loss")
    assert loss.steps.tolist() == [2, 10]
    assert np.asarray(loss.values).tolist() == [1.0, 0.5]
    assert run.scopes("grad_norm") == ["", "param_0", "param_1"]
    assert np.asarray(run.series("grad_norm").values).tolist() == [5.0]
    assert np.asarray(run.series("hess_trace").values).tolist() == [-2.0]
    assert np.asarray(run.series("update_size", "param_1").values).tolist() == [2.0]
    assert run.series("alpha").status == ["concave_or_zero", "ok"]
    assert {"train_loss", "epoch_count", "MyOwn"} <= set(run.names())
    assert run.series("cabs").status == ["missing"]
    (event,) = run.events("log")
    assert event.data == {"note": "a text"}
    assert run.meta["parameters"] == {"param_0": {}, "param_1": {}}
    assert [one["name"] for one in run_page(run, "x")["parameters"]] == ["param_0", "param_1"]
    assert {"param_0", "param_1"} <= {one["name"] for one in layer_tree(run)}
    assert run.status == "finished"


def test_histograms_with_their_single_tensors(tmp_path: Path) -> None:
    edges = [array([0.0, 1.0, 2.0], "float32"), array([-1.0, 0.0, 1.0, 2.0], "float32")]
    two = {"hist": array([[1, 2, 3], [4, 5, 6]], "int64"), "edges": edges}
    nested = {**two, "param_groups": 2, "param_0": two, "param_1": two}
    one = {"hist": array([1.0, 16777216.0], "float32"), "edges": array([0.0, 0.5, 1.0], "float32")}
    run = imported(tmp_path, {"0": {"GradHist1d": one, "GradHist2d": nested}})
    (hist,) = run.series("grad_hist1d").values
    assert isinstance(hist, Histogram)
    assert hist.counts.tolist() == [1, 16777216]
    assert hist.counts.dtype == np.int64
    assert run.scopes("grad_hist2d") == ["", "param_0", "param_1"]
    (hist,) = run.series("grad_hist2d", "param_1").values
    assert isinstance(hist, Histogram)
    assert hist.counts.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert hist.edges[1].tolist() == [-1.0, 0.0, 1.0, 2.0]


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    run = imported(tmp_path, '{"0": {"Loss": NaN, "GradNorm": [Infinity, 1.0], "CABS": -Infinity}}')
    assert math.isnan(run.series("loss").values[0])  # type: ignore[arg-type]
    assert run.series("grad_norm").values[0] == math.inf
    assert run.series("cabs").values[0] == -math.inf


def test_problem_and_optimizer_come_from_a_deepobs_path(tmp_path: Path) -> None:
    folder = tmp_path / "mnist_mlp" / "AdamOptimizer" / "lr__1e-3"
    folder.mkdir(parents=True)
    (folder / "random_seed__42__log.json").write_text('{"0": {"Loss": 1.0}}')
    import_original(folder / "random_seed__42__log.json", tmp_path / "run")
    meta = Run(tmp_path / "run").meta
    assert (meta["problem"], meta["optimizer"]) == ("mnist_mlp", "AdamOptimizer")


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"a": {"Loss": 1}}', '{"0": 5}', "{"])
def test_what_is_no_log_is_refused_and_leaves_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(CockpitError, match="not a log"):
        imported(tmp_path, text)
    assert not (tmp_path / "run").exists()


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    imported(tmp_path, {"0": {"Loss": 1.0}})
    with pytest.raises(CockpitError, match="already holds a run"):
        imported(tmp_path, {"0": {"Loss": 2.0}})


@pytest.mark.parametrize("log", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_import_and_export_of_a_real_log_changes_nothing(tmp_path: Path, log: Path) -> None:
    import_original(log, tmp_path / "run")
    text = io.StringIO()
    steps = to_original(Run(tmp_path / "run"), text)
    before, after = json.loads(log.read_text()), json.loads(text.getvalue())
    assert list(after) == sorted(after, key=int)
    assert steps == len(before)
    assert after == before


def test_every_class_of_the_original_has_a_name() -> None:
    assert len(NAMES) == 19
    assert len(set(NAMES.values())) == 19
