"""The twins agree with what the original has logged, wherever the original is right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cockpit.testing import Batch, Problem
from golden.make import CASES, STEPS, problem
from reference.counts import histogram_1d, histogram_2d
from reference.twins import Twin, train

TOLERANCE = {
    "Alpha": (1e-4, 1e-4),
    "MeanGSNR": (5e-3, 1e-5),
    "EarlyStopping": (5e-3, 1e-5),
    "HessMaxEV": (2e-2, 1e-4),
}
PER_TENSOR = {"GradNorm": "grad_norm", "Distance": "distance", "UpdateSize": "update_size"}
TOTAL = {
    "Loss": "loss",
    "NormTest": "norm_test",
    "InnerTest": "inner_test",
    "OrthoTest": "ortho_test",
    "MeanGSNR": "mean_gsnr",
    "CABS": "cabs",
    "EarlyStopping": "early_stopping",
}


class Logged(Problem):
    """A logged training as a problem of the zoo."""

    def batch(self, n: int, step: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        x, y = problem(self.name)[1][step]
        assert len(x) == n
        return (x.to(dtype),), y


def twin_of(name: str) -> Twin:
    def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    case = CASES[name]
    logged = Logged(name, lambda: problem(name)[0], lambda n, g: ((), torch.empty(0)), losses)
    from_golden = sys.modules["golden.make"].OPTIMIZERS[case.optimizer]
    return train(logged, from_golden, [[case.batch_size]] * STEPS, curvature=True)


def close(found: Any, wanted: Any, quantity: str) -> None:
    rtol, atol = TOLERANCE.get(quantity, (2e-4, 2e-6))
    np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=quantity)


@pytest.mark.parametrize("name", CASES)
def test_twins_repeat_the_original(name: str) -> None:
    log = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    twin, case = twin_of(name), CASES[name]
    settings = dict(case.quantities)
    for step in range(STEPS):
        row, seen = log[str(step)], twin.steps[step]
        assert set(settings) - set(row) == ({"Alpha", "UpdateSize"} if step == STEPS - 1 else set())
        tensors = list(seen.parameters)
        for quantity in set(TOTAL) & set(row):
            close(twin.value(step, TOTAL[quantity]), row[quantity], quantity)
        for quantity in set(PER_TENSOR) & set(row):
            close([twin.value(step, PER_TENSOR[quantity], k) for k in tensors], row[quantity], quantity)
        traces = [twin.value(step, f"hess_trace:{case.curvature}", k) for k in tensors]
        close(traces, row["HessTrace"], "HessTrace")
        close(twin.value(step, f"tic_trace:{case.curvature}"), row["TICTrace"], "TICTrace")
        if row["HessMaxEV"] > 0:
            close(twin.value(step, "hess_max_ev"), row["HessMaxEV"], "HessMaxEV")
        if step < STEPS - 1:
            concave = twin.status(step, "alpha") == "concave"
            close(-1 if concave else twin.value(step, "alpha"), row["Alpha"], "Alpha")
        if case.parameters:
            for k, theta in zip(tensors, row["Parameters"], strict=True):
                close(seen.parameters[k], theta, "Parameters")


@pytest.mark.parametrize("name", CASES)
def test_histograms_repeat_the_original(name: str) -> None:
    log = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    twin, case = twin_of_first_step(name), CASES[name]
    settings = dict(case.quantities)
    seen = twin.steps[0]
    G, theta = seen.joined(), np.concatenate([seen.parameters[k].ravel() for k in seen.used])
    one = histogram_1d(G, settings["GradHist1d"]["bins"], settings["GradHist1d"]["range"])
    two = histogram_2d(G, theta, settings["GradHist2d"]["bins"], settings["GradHist2d"]["range"])
    one["counts"][[0, -1]] += one["underflow"], one["overflow"]
    first, second = log["0"]["GradHist1d"], log["0"]["GradHist2d"]
    np.testing.assert_allclose(one["edges"], first["edges"]["__ndarray__"], atol=1e-6)
    # A gradient on an edge may fall to either side in float32.
    assert np.abs(one["counts"] - first["hist"]["__ndarray__"]).sum() <= 1e-3 * G.size
    counts = np.array(second["hist"]["__ndarray__"])
    assert counts.sum() == G.size
    assert np.abs(two["counts"] - counts)[1:-1].sum() <= 1e-3 * G.size


def twin_of_first_step(name: str) -> Twin:
    return twin_of(name)
