"""Made-up runs are like real ones: what belongs together fits together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.store.record import Histogram
from cockpit.store.run import Run
from cockpit.testing.runs import QUANTITIES, fake_run
from cockpit.testing.story import BATCH, parameter_names


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(fake_run(tmp_path_factory.mktemp("runs") / "one", steps=40))


def values(run: Run, name: str, scope: str = "") -> np.ndarray:
    return np.asarray(run.series(name, scope).values)


def test_everything_is_there(run: Run) -> None:
    assert set(QUANTITIES) | {"learning_rate", "train_accuracy", "valid_accuracy"} <= set(run.names())
    assert run.status == "finished"
    assert run.steps() == (40, 39)
    assert [one["name"] for one in run.meta["quantities"]] == list(QUANTITIES)


def test_pythagoras(run: Run) -> None:
    both = np.hypot(values(run, "inner_test"), values(run, "ortho_test"))
    np.testing.assert_allclose(both, values(run, "norm_test"))


def test_histograms_count_everything_once(run: Run) -> None:
    for name in ("grad_hist1d", "grad_hist2d"):
        whole = run.series(name, points=2).values[-1]
        parts = [run.series(name, scope, points=2).values[-1] for scope in run.scopes(name)[1:]]
        sizes = [np.prod(one["shape"]) for one in run.meta["parameters"].values()]
        assert isinstance(whole, Histogram)
        assert whole.total == BATCH * sum(sizes)
        assert whole.total == sum(part.total for part in parts if isinstance(part, Histogram))


def test_same_seed_same_run(run: Run, tmp_path: Path) -> None:
    again = Run(fake_run(tmp_path / "a", steps=40, quantities=QUANTITIES))
    other = Run(fake_run(tmp_path / "b", steps=40, seed=1))
    np.testing.assert_array_equal(values(again, "loss"), values(run, "loss"))
    assert (values(other, "loss") != values(run, "loss")).all()


def test_chosen(tmp_path: Path) -> None:
    run = Run(fake_run(tmp_path, steps=20, every=5, quantities=("loss", "grad_norm"), parameters=5))
    assert {"loss", "grad_norm", "learning_rate"} < set(run.names())
    assert "alpha" not in run.names()
    assert run.series("loss").steps.tolist() == [0, 5, 10, 15]
    assert len(run.scopes("grad_norm")) == 6


def test_trouble(tmp_path: Path) -> None:
    nan = Run(fake_run(tmp_path / "nan", steps=20, trouble="nan", parameters=4))
    assert np.isfinite(values(nan, "loss")).sum() == 12
    assert nan.series("loss").status[-1].startswith("nonfinite")
    assert nan.events("nonfinite")
    gap = Run(fake_run(tmp_path / "gap", steps=20, trouble="gap", parameters=4))
    assert not set(gap.series("loss").steps.tolist()) & {8, 9}
    assert gap.events("resumed")[0].step == 10
    dead = Run(fake_run(tmp_path / "dead", steps=20, trouble="dead_layer", parameters=4))
    norms = [values(dead, "grad_norm", name).max() for name in parameter_names(4)]
    assert norms[2] < 1e-10 < min(norms[:2])


def test_a_run_is_not_overwritten(run: Run) -> None:
    with pytest.raises(CockpitError, match="holds a run already"):
        fake_run(run.path)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12, 13, 500])
def test_names(count: int) -> None:
    names = parameter_names(count)
    assert len(set(names)) == len(names) == count


def test_long_runs_are_thinned_out(tmp_path: Path) -> None:
    run = Run(fake_run(tmp_path, steps=30_000, parameters=2, quantities=("loss", "grad_norm", "grad_hist1d")))
    assert len(run.series("loss")) == 30_000
    assert len(run.series("grad_norm", "head.weight")) == 1000
    whole = values(run, "grad_norm")[run.series("grad_norm", "head.weight").steps]
    parts = [values(run, "grad_norm", f"head.{kind}") for kind in ("weight", "bias")]
    np.testing.assert_allclose(np.hypot(*parts), whole)


def test_command(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cockpit.testing.runs",
        str(tmp_path / "r"),
        "--steps",
        "5",
        "--parameters",
        "2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "written in" in done.stdout
    assert Run(tmp_path / "r").steps() == (5, 4)


def test_no_torch_and_the_functions_keep_their_names() -> None:
    code = (
        "import sys, cockpit.testing.runs; assert 'torch' not in sys.modules;"
        "from cockpit.testing.problem import Batch; from cockpit.testing import problem, problems, Problem;"
        "assert callable(problem) and callable(problems); print(problem('mlp').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
