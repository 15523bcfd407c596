"""The twins agree with what the original has logged, wherever the original is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cockpit.testing import Batch, Problem
from cockpit.testing.problem import cross_entropy
from golden.make import CASES, OPTIMIZERS, STEPS, problem
from reference.counts import histogram_1d, histogram_2d
from reference.twins import Twin, train

# Tolerances of the original's own tests, rtol and atol; TICDiag is looser: it divides by small curvatures.
TOLERANCE = {
    "Alpha": (1e-5, 1e-5),
    "MeanGSNR": (5e-3, 1e-5),
    "EarlyStopping": (5e-3, 1e-5),
    "HessMaxEV": (1e-2, 1e-4),
    "TICDiag": (1e-3, 1e-7),
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


def log_of(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / f"{name}.json").read_text())


def twin_of(name: str, **curvature: Any) -> Twin:
    case = CASES[name]
    logged = Logged(name, lambda: problem(name)[0], lambda n, g: ((), torch.empty(n)), cross_entropy)
    return train(logged, OPTIMIZERS[case.optimizer], [[case.batch_size]] * STEPS, **curvature)


def close(found: Any, wanted: Any, quantity: str) -> None:
    rtol, atol = TOLERANCE.get(quantity, (1e-5, 1e-7))
    np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=quantity)


@pytest.mark.parametrize("name", CASES)
def test_values_repeat_the_original(name: str) -> None:
    log, twin, case = log_of(name), twin_of(name), CASES[name]
    for step in range(STEPS):
        row, seen = log[str(step)], twin.steps[step]
        missing = {q for q, _ in case.quantities} - set(row)
        assert missing == ({"Alpha", "UpdateSize"} if step == STEPS - 1 else set())
        tensors = list(seen.parameters)
        for quantity in set(TOTAL) & set(row):
            close(twin.value(step, TOTAL[quantity]), row[quantity], quantity)
        for quantity in set(PER_TENSOR) & set(row):
            close([twin.value(step, PER_TENSOR[quantity], k) for k in tensors], row[quantity], quantity)
        if step < STEPS - 1:
            concave = twin.status(step, "alpha") == "concave"
            close(-1 if concave else twin.value(step, "alpha"), row["Alpha"], "Alpha")
        if case.parameters:
            for k, theta in zip(tensors, row["Parameters"], strict=True):
                close(seen.parameters[k], theta, "Parameters")


@pytest.mark.parametrize("name", CASES)
def test_curvature_repeats_the_original(name: str) -> None:
    # For piecewise linear networks the Hessian's diagonal is the Gauss-Newton matrix', which is cheap.
    net, optimizer = CASES[name].net, CASES[name].optimizer
    dense = (
        range(STEPS) if net in ("mlp_25", "mlp_tanh") else [0] if (net, optimizer) == ("2c2d", "sgd") else []
    )
    log, twin = log_of(name), twin_of(name, curvature=True, dense=dense)
    kind = "diag_h" if net == "mlp_tanh" else "diag_ggn_exact"
    for step in range(STEPS):
        row, tensors = log[str(step)], list(twin.steps[step].parameters)
        traces = [twin.value(step, f"hess_trace:{kind}", k) for k in tensors]
        close(traces, row["HessTrace"], "HessTrace")
        close(twin.value(step, f"tic_trace:{kind}"), row["TICTrace"], "TICTrace")
        if twin.status(step, f"tic_diag:{kind}") == "ok":
            close(twin.value(step, f"tic_diag:{kind}"), row["TICDiag"], "TICDiag")
        if step in dense and row["HessMaxEV"] > 0:
            close(twin.value(step, "hess_max_ev"), row["HessMaxEV"], "HessMaxEV")


@pytest.mark.parametrize("name", CASES)
def test_histograms_repeat_the_original(name: str) -> None:
    log, twin, settings = log_of(name), twin_of(name), dict(CASES[name].quantities)
    for step, seen in enumerate(twin.steps):
        G, theta = seen.joined(), np.concatenate([seen.parameters[k].ravel() for k in seen.used])
        one = histogram_1d(G, settings["GradHist1d"]["bins"], settings["GradHist1d"]["range"])
        two = histogram_2d(G, theta, settings["GradHist2d"]["bins"], settings["GradHist2d"]["range"])
        # The original puts outliers into the outer bins; in float32 an edge may be missed by a hair.
        one["counts"][[0, -1]] += one["underflow"], one["overflow"]
        first, second = log[str(step)]["GradHist1d"], log[str(step)]["GradHist2d"]
        np.testing.assert_allclose(one["edges"], first["edges"]["__ndarray__"], atol=1e-6)
        assert np.abs(one["counts"] - first["hist"]["__ndarray__"]).sum() <= 1e-3 * G.size
        counts = np.array(second["hist"]["__ndarray__"])
        assert counts.sum() == G.size
        assert np.abs(two["counts"] - counts)[1:-1].sum() <= 1e-3 * G.size
