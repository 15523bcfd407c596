"""Two processes, each with its share of a batch: every quantity is that of one process on the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit import Cockpit, Run
from distributed.worker import CASES, STEPS, data_of, model_of
from session.loops import Records, differences, losses_of, records, trained

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Start both processes once for all cases and wait; one that hangs is ended."""
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "distributed" / "worker.py"), str(rank), str(folder)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=150)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return folder


def alone(case: str, folder: Path) -> Records:
    """The same training in this process, on the joined batch."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(losses_of(model, *data_of(case, t, sum(CASES[case]))))

    return trained(folder, body, steps=STEPS, model=model_of(case))


@pytest.mark.parametrize("case", list(CASES))
def test_two_ranks_are_one(tmp_path: Path, two_ranks: Path, case: str):
    found, expected = records(two_ranks / case / "rank0"), alone(case, tmp_path / "alone")
    # The elementwise mean over micro-batches is summed in another order: the last digits may differ.
    assert not differences(found, expected, rtol=1e-9, leave_out=["hess_max_ev"], atol=1e-11)
    for t in range(STEPS):
        assert found[t, "hess_max_ev", ""][1] == "ok"
        assert found[t, "hess_max_ev", ""][0] == pytest.approx(expected[t, "hess_max_ev", ""][0], rel=1e-2)
    assert Run(two_ranks / case / "rank0").meta["ranks"] == 2
    assert not (two_ranks / case / "rank1").exists(), "only the first rank writes"
    assert [(e.kind, e.text) for e in Run(two_ranks / case / "rank0").events()] == []
