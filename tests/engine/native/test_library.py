"""Without a compiler everything works: the same numbers as with one, of steps that are recorded as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.engine import native
from engine.replayed import Training
from session.loops import differences, records

TESTS = Path(__file__).parents[2]
TRAININGS = {"mlp": "sgd", "conv": "adam", "batch_norm": "momentum"}
ALONE = """
import sys
from pathlib import Path
from cockpit.engine import native
from engine.native.test_library import train
assert native.status() == "by torch (turned off by COCKPIT_NATIVE)"
train(Path(sys.argv[1]))
"""


def train(folder: Path) -> None:
    """Train all models, watched; the later steps and their curvature are replayed."""
    for model, optimizer in TRAININGS.items():
        training = Training(folder / model, "replayed", model, optimizer, None, config="full")
        for _ in range(8):
            training.step()
        assert training.cockpit is not None
        engine = training.cockpit._engine
        steps, curvature = engine.passes.watch.tapes, engine.curvatures.tapes
        assert curvature is not None
        kept = steps.failure, len(steps._tapes), [kind.refused for kind in curvature._kinds.values()]
        training.cockpit.close()
        assert kept == (None, 1, [""]), model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of this process, and of one without kernels."""
    if not native.status().startswith("compiled"):
        pytest.skip("no compiler")
    here, alone = (tmp_path_factory.mktemp(name) for name in ("here", "alone"))
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(alone)],
        env={**os.environ, "PYTHONPATH": path, "COCKPIT_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    train(here)
    return here, alone


@pytest.mark.parametrize("model", TRAININGS)
def test_without_kernels_all_numbers_are_the_same(model: str, folders: tuple[Path, Path]) -> None:
    with_kernels, without = (records(folder / model) for folder in folders)
    assert {name for _, name, _ in without} >= {"hess_max_ev", "tic_diag", "hess_trace", "grad_hist2d"}
    assert differences(without, with_kernels, rtol=1e-9) == []
