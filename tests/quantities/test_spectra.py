"""Curvature that is known: spectra that were chosen, diagonals by definition, and a figure of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import HessMaxEV, HessTrace, TICDiag
from cockpit.testing import problem
from quantities.closed_forms import F64, GGN, Quadratic, mlp, run, value
from reference.figures import F11_TRAIN, descent, product
from watched import watch


def quadratic_deep() -> Tensor:
    """Q of DeepOBS: 90 eigenvalues in [0, 1], 10 in [30, 60], turned by a random rotation (seed 42)."""
    random = np.random.RandomState(42)
    spectrum = np.r_[random.uniform(0, 1, 90), random.uniform(30, 60, 10)]
    a = 2 * np.pi * random.uniform()
    R = np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])
    for d in range(2, 100):
        v = random.normal(size=d + 1)
        x = np.eye(d + 1)[0] - v / np.linalg.norm(v)
        x /= np.linalg.norm(x)
        R = (np.eye(d + 1) - 2 * np.outer(x, x)) @ np.block(
            [[np.ones((1, 1)), np.zeros((1, d))], [np.zeros((d, 1)), R]]
        )
    return torch.from_numpy(R.T @ np.diag(spectrum) @ R)


def test_quadratic_deep(tmp_path: Path) -> None:
    """Tr H = 9.5522456 and λ_max = 1.0625803 wherever θ is; the gradient is 2Q(θ − x̄)/100."""
    Q, B = quadratic_deep(), 128
    data = torch.from_numpy(np.random.RandomState(42).normal(0, 0.6, (1000, 100)))
    places = []

    def losses(m: nn.Module, t: int) -> Tensor:
        places.append(m.theta.detach().clone())
        return m(data[B * t : B * (t + 1)])

    quantities: list[Any] = [HessMaxEV(), HessMaxEV(1e-8, 400, label="fine"), "hess_trace", "grad_norm"]
    found = run(tmp_path, Quadratic(Q / 50), losses, quantities, steps=3)
    for t in range(3):
        assert value(found, "hess_trace", t) == pytest.approx(9.5522456, rel=1e-7)
        assert value(found, "hess_max_ev", t) == pytest.approx(1.0625803, rel=1e-4)
        assert value(found, "hess_max_ev:fine", t) == pytest.approx(1.0625803, rel=1e-7)
        g = Q @ (places[t] - data[B * t : B * (t + 1)].mean(0)) / 50
        assert value(found, "grad_norm", t) == pytest.approx(float(g.norm()), rel=1e-12)
    assert not torch.equal(places[0], places[2])


@pytest.mark.parametrize(
    ("A", "top"),
    [
        (torch.diag(torch.tensor([-5.0, 1.0, 0.5], dtype=F64)), 1.0),
        (-torch.eye(4, dtype=F64), -1.0),
        (torch.zeros(3, 3, dtype=F64), 0.0),
    ],
    ids=["indefinite", "negative", "zero"],
)
def test_the_largest_algebraic_eigenvalue(tmp_path: Path, A: Tensor, top: float) -> None:
    x = torch.zeros(3, len(A), dtype=F64)
    found = run(tmp_path, Quadratic(A), lambda m, t: m(x), ["hess_max_ev", "hess_trace"], steps=1)
    assert value(found, "hess_max_ev") == pytest.approx(top, rel=1e-4, abs=1e-12)
    assert value(found, "hess_trace") == pytest.approx(float(A.trace()), abs=1e-12)


def test_curvature_of_a_relu_net(tmp_path: Path) -> None:
    """diag H = diag GGN = the expected squared gradient over labels drawn from the model."""
    p = problem("mlp")
    model = p.build()
    (x,), y = p.batch(5)
    quantities: list[Any] = [
        *(HessTrace("diag_h"), TICDiag("diag_h")),
        *(HessTrace(GGN, label="ggn"), TICDiag(GGN, label="ggn")),
    ]
    expected = {name: 0.0 for name, _ in model.named_parameters()}
    for n in range(5):
        logits = model(x[n : n + 1])
        for c, probability in enumerate(logits.detach().softmax(1)[0].tolist()):
            loss = F.cross_entropy(logits, torch.tensor([c]))
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for name, g in zip(expected, grads, strict=True):
                expected[name] += probability * float(g.square().sum()) / 5
    found = run(tmp_path, model, lambda m, t: p.losses(m, (x,), y), quantities, steps=1)
    for name, trace in expected.items():
        assert found[0, "hess_trace:ggn", name][0] == pytest.approx(trace, rel=1e-12)
        assert found[0, "hess_trace", name][0] == pytest.approx(trace, rel=1e-12)
        assert found[0, "tic_diag", name][0] == pytest.approx(found[0, "tic_diag:ggn", name][0], rel=1e-9)
    assert value(found, "hess_trace") == pytest.approx(sum(expected.values()), rel=1e-12)


def test_monte_carlo_curvature_is_right_on_average(tmp_path: Path) -> None:
    quantities: list[Any] = [HessTrace("diag_ggn_mc", samples=300), HessTrace(GGN, label="ggn")]
    found = mlp(tmp_path, quantities, steps=1)
    error = found[0, "hess_trace.standard_error", ""][0]
    exact = value(found, "hess_trace:ggn")
    assert 0 < error < 0.2 * exact
    assert abs(value(found, "hess_trace", status="estimated") - exact) < 5 * error


def test_implicit_regularisation_from_its_start_to_its_minimum(tmp_path: Path) -> None:
    """f(x) = w₂w₁x: sharpness at the start, and full-batch descent into the minimum of λ = 2 S_xx |w|²."""
    p, steps = product(), 60
    quantities: list[Any] = ["loss", "hess_trace", "parameters", HessMaxEV(1e-10, 100)]
    found, _, _ = watch(p, descent, [[F11_TRAIN]] * steps, tmp_path, quantities)
    top, trace, losses = (found.series(n).values for n in ("hess_max_ev", "hess_trace", "loss"))
    assert losses[0] == pytest.approx(1.676708, abs=1e-5)
    assert top[0] == pytest.approx(5.194136, abs=1e-5)
    assert trace[0] - top[0] == pytest.approx(-0.395760, abs=1e-5)
    assert losses[-1] == pytest.approx(0.759325, abs=1e-5)
    assert top[-1] == pytest.approx(6.106881, abs=1e-4)
    w = [float(found.series("parameters", k).values[-1]) for k in ("w1", "w2")]
    assert w == pytest.approx([0.680794, 1.796480], abs=1e-4)
