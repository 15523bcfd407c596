"""Softmax regression and least squares have every quantity on paper."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit import HessMaxEV, TICTrace
from cockpit.testing import problem
from quantities.closed_forms import F64, GGN, run, value


@pytest.mark.parametrize(("dtype", "rel"), [(F64, 1e-10), (torch.float32, 1e-4)])
def test_softmax_regression_at_zero(tmp_path: Path, dtype: torch.dtype, rel: float) -> None:
    """L = ln C, Tr H = (1 − 1/C) Tr S, λ = λ_max(S)/C, ‖g_n‖² = (1 − 1/C) ‖x̃_n‖²."""
    C, B = 3, 9
    p = problem("logreg")
    inputs, targets = p.batch(B, dtype=dtype)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-12
    quantities: list[Any] = ["loss", "hess_trace", HessMaxEV(tolerance, 500), TICTrace(GGN)]
    found = run(tmp_path, p.build(dtype), lambda m, t: p.losses(m, inputs, targets), quantities, steps=1)
    x = torch.cat([inputs[0], torch.ones(B, 1)], 1).double()
    S = x.T @ x / B
    assert value(found, "loss") == pytest.approx(log(C), rel=rel)
    assert value(found, "hess_trace") == pytest.approx((1 - 1 / C) * float(S.trace()), rel=rel)
    assert value(found, "hess_max_ev") == pytest.approx(float(torch.linalg.eigvalsh(S)[-1]) / C, rel=rel)
    second_moment = value(found, "tic_trace") * (value(found, "hess_trace") + 1e-7)
    assert second_moment == pytest.approx((1 - 1 / C) * float(x.square().sum(1).mean()), rel=rel)


@pytest.mark.parametrize(("dtype", "rel"), [(F64, 1e-10), (torch.float32, 2e-4)])
def test_least_squares(tmp_path: Path, dtype: torch.dtype, rel: float) -> None:
    """ℓ_n = ½(wᵀx_n − y_n)²: g_n = r_n x_n and H = XᵀX/B give every quantity."""
    B, d, eta = 7, 4, 0.1
    g = torch.Generator().manual_seed(5)
    X, Y = (torch.randn(B, k, dtype=F64, generator=g) for k in (d, 1))
    model = nn.Linear(d, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.arange(1.0, d + 1)[None] / 10)
    quantities: list[Any] = [
        *("loss", "grad_norm", "update_size", "distance", "norm_test", "inner_test", "ortho_test", "alpha"),
        *("mean_gsnr", "early_stopping", "cabs", "hess_trace", "tic_diag", "tic_trace", "grad_hist1d"),
        HessMaxEV(1e-6 if dtype is torch.float32 else 1e-12, 500),
    ]

    def losses(m: nn.Module, _: int) -> Tensor:
        return 0.5 * (m(X.to(dtype)) - Y.to(dtype)).square().sum(1)

    w = model.weight.detach().double().numpy().ravel().copy()
    found = run(tmp_path, model, losses, quantities)
    x, y = X.numpy(), Y.numpy().ravel()
    r = x @ w - y
    G, H = r[:, None] * x, x.T @ x / B
    mean, spread = G.mean(0), ((G - G.mean(0)) ** 2).sum()
    p, m2 = G @ mean, mean @ mean
    moment, h = (G**2).mean(0), np.diag(H)
    expected = {
        "loss": 0.5 * (r**2).mean(),
        "grad_norm": sqrt(m2),
        "update_size": eta * sqrt(m2),
        "distance": 0.0,
        "norm_test": sqrt(spread / (B * (B - 1) * m2)),
        "inner_test": sqrt(((p - m2) ** 2).sum() / (B * (B - 1) * m2**2)),
        "ortho_test": sqrt(((G - np.outer(p, mean) / m2) ** 2).sum() / (B * (B - 1) * m2)),
        "alpha": eta * (mean @ H @ mean) / m2 - 1,
        "mean_gsnr": (mean**2 / (G.var(0) + 1e-5)).mean(),
        "early_stopping": 1 - B * (mean**2 / (G.var(0, ddof=1) + 1e-5)).mean(),
        "cabs": eta * G.var(0).sum() / (0.5 * (r**2).mean()),
        "hess_trace": np.trace(H),
        "tic_diag": (moment / (h + 1e-7)).sum(),
        "tic_trace": moment.sum() / (np.trace(H) + 1e-7),
        "hess_max_ev": np.linalg.eigvalsh(H)[-1],
    }
    for name, number in expected.items():
        assert value(found, name) == pytest.approx(number, rel=rel, abs=1e-12), name
    inside = (np.abs(G) <= 2).sum()
    assert value(found, "grad_hist1d").counts.sum() == inside
    assert value(found, "grad_hist1d").total == B * d
