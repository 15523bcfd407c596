"""What is known in closed form, through the public interface: a cockpit around a training, and its run.

Quadratics, least squares and softmax regression have every quantity on paper; any net obeys the identities
between quantities, and two figures of the paper are known to six digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import (
    CABS,
    Alpha,
    EarlyStopping,
    GradHist1d,
    GradHist2d,
    HessMaxEV,
    HessTrace,
    Histogram,
    MeanGSNR,
    TICDiag,
    TICTrace,
)
from cockpit.testing import problem
from reference.figures import F1_RUNS, F1_STEPS, F11_TRAIN, descent, product, valley
from reference.step import End, least_squares
from reference.twins import train
from session.loops import Records, batch, losses_of, net, sgd, trained
from watched import watch

F64 = torch.float64
Body = Callable[[nn.Module, int], Tensor]
"""(model, step) → losses."""


def run(
    folder: Path,
    model: nn.Module,
    losses: Body,
    quantities: list[Any],
    steps: int = 2,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
) -> Records:
    def body(cockpit: Any, m: nn.Module, _: torch.optim.Optimizer, t: int) -> None:
        cockpit.backward(losses(m, t))

    return trained(folder, body, steps, model, optimizer, quantities)


def value(found: Records, name: str, t: int = 0, scope: str = "", status: str = "ok") -> Any:
    number, why = found[t, name, scope]
    assert why.split(":")[0] == status, (name, t, scope, why)
    return number


def mlp(folder: Path, quantities: list[Any], steps: int = 2, **settings: Any) -> Records:
    """The small tanh net on six examples a step."""
    return run(folder, net(), lambda m, t: losses_of(m, *batch(t)), quantities, steps, **settings)


# -- step length ---------------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """½ (θ − x_n)ᵀ A (θ − x_n) for every example."""

    A: Tensor

    def __init__(self, A: Tensor, theta: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("A", A)
        self.theta = nn.Parameter(torch.ones_like(A[0]) if theta is None else theta.clone())

    def forward(self, x: Tensor) -> Tensor:
        away = self.theta - x
        return 0.5 * ((away @ self.A) * away).sum(1)


def valley_matrix(size: int = 4, dtype: torch.dtype = F64) -> Tensor:
    """Positive definite, eigenvalues from 0.5 up."""
    half = torch.randn(size, size, dtype=F64, generator=torch.Generator().manual_seed(3))
    return (half @ half.T / size + 0.5 * torch.eye(size, dtype=F64)).to(dtype)


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.3),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.05, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=10.0),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
}


@pytest.mark.parametrize("noisy", [False, True], ids=["examples alike", "the same noisy batch"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_step_length_on_a_quadratic(tmp_path: Path, name: str, noisy: bool) -> None:
    """α = −sᵀHs/(gᵀs) − 1 for any step s; losses and slopes at both ends agree."""
    A, steps = valley_matrix(), 4
    x = torch.randn(5, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
    x = x if noisy else torch.zeros(2, 4, dtype=F64)
    places: list[Tensor] = []

    def losses(model: nn.Module, _: int) -> Tensor:
        assert isinstance(model, Quadratic)
        places.append(model.theta.detach().clone())
        return model(x)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[name](model.parameters())

    found = run(tmp_path / "r", Quadratic(A), losses, ["alpha"], steps, optimizer)
    for t in range(steps - 1):
        s, g = places[t + 1] - places[t], A @ (places[t] - x.mean(0))
        expected = float(-(s @ A @ s) / (g @ s) - 1)
        got, status = found[t, "alpha", ""]
        assert got == pytest.approx(expected, rel=1e-9)
        uphill = noisy and float(g @ s) > 0
        assert status.split(":")[0] == ("uphill" if uphill else "ok" if noisy else "noise_free")


@pytest.mark.parametrize(("dtype", "rel"), [(F64, 1e-10), (torch.float32, 1e-4)])
def test_step_length_of_plain_descent(tmp_path: Path, dtype: torch.dtype, rel: float) -> None:
    """α = η gᵀHg/gᵀg − 1, and η h − 1 in one dimension."""
    A = valley_matrix(dtype=dtype)
    found = run(tmp_path / "many", Quadratic(A), lambda m, t: m(torch.zeros(3, 4, dtype=dtype)), ["alpha"])
    g = A.double() @ torch.ones(4, dtype=F64)
    assert found[0, "alpha", ""][0] == pytest.approx(float(0.1 * (g @ A.double() @ g) / (g @ g)) - 1, rel=rel)
    one = Quadratic(torch.tensor([[7.0]], dtype=dtype))
    found = run(tmp_path / "one", one, lambda m, t: m(torch.zeros(3, 1, dtype=dtype)), ["alpha"])
    assert found[0, "alpha", ""][0] == pytest.approx(0.1 * 7 - 1, rel=rel)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_step_length_where_all_examples_are_alike(tmp_path: Path, dtype: torch.dtype) -> None:
    """However many: variances that are only rounding are none, and all four observations count alike."""
    found = {}
    for copies in (2, 4, 7):

        def losses(m: nn.Module, t: int, copies: int = copies) -> Tensor:
            x, y = batch(0, 1, dtype)
            return losses_of(m, x.expand(copies, -1), y.expand(copies))

        rate = lambda m: sgd(m, 3.0)  # noqa: E731  # long steps, on which no parabola fits
        found[copies] = run(tmp_path / str(copies), net(dtype=dtype), losses, ["alpha"], 3, rate)
    for t in range(2):
        for copies in (4, 7):
            (got, status), (expected, why) = found[copies][t, "alpha", ""], found[2][t, "alpha", ""]
            assert status == why
            assert got == pytest.approx(expected, rel=1e-8 if dtype is F64 else 1e-3, nan_ok=True)


def test_step_length_is_the_weighted_least_squares_fit(tmp_path: Path) -> None:
    """Closed form = lstsq in σ = the original's normal equations in τ = σ‖s‖ with slopes per unit length."""
    p, steps = problem("mlp_tanh"), 8

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.05)

    twin = train(p, adam, [[7]] * steps)
    found, _, _ = watch(p, adam, [[7]] * steps, tmp_path, ["alpha"])
    series = found.series("alpha")
    fitted = 0
    for t in range(steps - 1):
        here, there = twin.steps[t], twin.steps[t + 1]
        s = np.concatenate([(there.parameters[k] - v).ravel() for k, v in here.parameters.items()])
        ends = [End.of(seen.losses, seen.joined() @ s) for seen in (here, there)]
        _, a1, a2 = least_squares(*ends)
        length = float(np.linalg.norm(s))
        phi = np.array([[1, 0, 0], [1, length, length**2], [0, 1, 0], [0, 1, 2 * length]])
        seen = np.array([ends[0].f, ends[1].f, ends[0].d / length, ends[1].d / length])
        spread = [ends[0].f_var, ends[1].f_var, ends[0].d_var / length**2, ends[1].d_var / length**2]
        weight = np.diag(1 / (7 * np.array(spread)))  # single-sample variances: the factor cancels
        w = np.linalg.solve(phi.T @ weight @ phi, phi.T @ weight @ seen)
        if a2 < 0:
            assert np.isnan(series.values[t])
            assert series.status[t].startswith("concave")
            continue
        fitted += 1
        assert series.values[t] == pytest.approx(-2 * a2 / a1 - 1, rel=1e-9)
        assert series.values[t] == pytest.approx(2 * length * w[2] / -w[1] - 1, rel=1e-6)
    assert fitted > 2


# -- identities between quantities ---------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "rel"), [(F64, 1e-12), (torch.float32, 1e-5)])
def test_identities_of_gradient_noise(tmp_path: Path, dtype: torch.dtype, rel: float) -> None:
    quantities: list[Any] = [
        *("norm_test", "inner_test", "ortho_test", "grad_norm", "loss", HessTrace("diag_h")),
        *(MeanGSNR(epsilon=0.0), EarlyStopping(epsilon=0.0), CABS(), TICTrace("diag_h")),
    ]
    B, eta = 6, 0.1
    found = run(
        tmp_path, net(dtype=dtype), lambda m, t: losses_of(m, *batch(t, B, dtype)), quantities, steps=3
    )
    for t in range(3):
        norm, inner, ortho, g = (
            value(found, n, t) for n in ("norm_test", "inner_test", "ortho_test", "grad_norm")
        )
        assert norm**2 == pytest.approx(inner**2 + ortho**2, rel=rel)
        assert value(found, "early_stopping", t) == pytest.approx(
            1 - (B - 1) * value(found, "mean_gsnr", t), rel=10 * rel
        )
        assert value(found, "cabs", t) == pytest.approx(
            eta * (B - 1) * g**2 * norm**2 / value(found, "loss", t), rel=10 * rel
        )
        second_moment = value(found, "tic_trace", t) * (value(found, "hess_trace", t) + 1e-7)
        assert second_moment == pytest.approx(g**2 * (1 + (B - 1) * norm**2), rel=10 * rel)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_histograms_count_everything(tmp_path: Path, threads: Callable[[int], None]) -> None:
    """Σ = B·D; parameters add up; the gradient marginal of two dimensions is the one-dimensional histogram."""
    reach, D = (-0.04, 0.03), sum(p.numel() for p in net().parameters())
    quantities = [GradHist1d(15, reach), GradHist2d((15, 6), (reach, (-0.2, 0.1)))]
    runs = []
    for count in (1, 2):
        threads(count)
        runs.append(mlp(tmp_path / str(count), quantities))
    for t in range(2):
        one, two = value(runs[0], "grad_hist1d", t), value(runs[0], "grad_hist2d", t)
        assert isinstance(one, Histogram)
        assert isinstance(two, Histogram)
        assert one.total == two.total == 6 * D
        assert min(one.underflow, one.overflow) > 0, "nothing lies outside"
        np.testing.assert_array_equal(two.counts.sum(1), one.counts)
        for whole, name in ((one, "grad_hist1d"), (two, "grad_hist2d")):
            parts = [v for (s, n, scope), (v, _) in runs[0].items() if (s, n) == (t, name) and scope]
            assert len(parts) == 4
            np.testing.assert_array_equal(sum(p.counts for p in parts), whole.counts)
            for apart in ("underflow", "overflow", "nan", "inf"):
                assert sum(getattr(p, apart) for p in parts) == getattr(whole, apart)
            np.testing.assert_array_equal(value(runs[1], name, t).counts, whole.counts)


def test_parameters_add_up(tmp_path: Path) -> None:
    quantities: list[Any] = ["grad_norm", "distance", "update_size", "hess_trace", "tic_diag", "cabs"]
    found = mlp(tmp_path, quantities, steps=3)
    for t in range(3):
        for name in ("grad_norm", "distance", "update_size"):
            parts = [v for (s, n, scope), (v, _) in found.items() if (s, n) == (t, name) and scope]
            assert value(found, name, t) == pytest.approx(sqrt(sum(v**2 for v in parts)), rel=1e-12)
        for name in ("hess_trace", "tic_diag", "cabs"):
            parts = [v for (s, n, scope), (v, _) in found.items() if (s, n) == (t, name) and scope]
            assert found[t, name, ""][0] == pytest.approx(sum(parts), rel=1e-10)


def test_steps_of_plain_descent(tmp_path: Path) -> None:
    """UpdateSize = η‖g‖ for each parameter; Distance starts at 0 and obeys the triangle inequality."""
    found = mlp(tmp_path, ["grad_norm", "update_size", "distance"], steps=5)
    for (t, name, scope), (size, _) in found.items():
        if name == "update_size":
            assert size == pytest.approx(0.1 * found[t, "grad_norm", scope][0], rel=1e-10)
        if name == "distance":
            assert (size == 0) == (t == 0)
            reach = found.get((t + 1, "distance", scope), (0.0, ""))[0]
            assert reach <= size + found[t, "update_size", scope][0] + 1e-15
    assert value(found, "distance", 1) == pytest.approx(value(found, "update_size", 0), rel=1e-12)


GGN = "diag_ggn_exact"  # positive, so that TIC needs no ε
NOISE: list[Any] = [
    *("loss", "grad_norm", "norm_test", "inner_test", "ortho_test", "alpha", "cabs"),
    *(MeanGSNR(epsilon=0.0), EarlyStopping(epsilon=0.0)),
    *(HessTrace("diag_h"), HessTrace(GGN, label="ggn"), HessMaxEV(1e-11, 500)),
    *(TICDiag(GGN, epsilon=0.0), TICTrace(GGN, epsilon=0.0)),
]


def test_a_loss_times_a_constant(tmp_path: Path) -> None:
    """With the same steps: gradients, curvature, TIC and CABS/η grow by c; what is a ratio does not."""
    c, steps = 3.0, 3
    once = mlp(tmp_path / "1", NOISE, steps)
    more = run(
        tmp_path / "c",
        net(),
        lambda m, t: c * losses_of(m, *batch(t)),
        NOISE,
        steps,
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1 / c),
    )
    factors = {
        **dict.fromkeys(["loss", "grad_norm", "hess_trace", "hess_trace:ggn", "hess_max_ev"], c),
        **dict.fromkeys(["tic_diag", "tic_trace"], c),
        **dict.fromkeys(
            ["norm_test", "inner_test", "ortho_test", "alpha", "mean_gsnr", "early_stopping"], 1.0
        ),
        "cabs": 1.0,  # × c at the same learning rate
    }
    compared = 0
    for t in range(steps):
        for name, factor in factors.items():
            if (t, name, "") in once:
                expected = factor * once[t, name, ""][0]
                assert more[t, name, ""][0] == pytest.approx(expected, rel=1e-9, nan_ok=True), (t, name)
                compared += 1
    assert compared == steps * len(factors) - 1


def test_every_example_twice_and_in_another_order(tmp_path: Path) -> None:
    B = 6
    quantities = [*NOISE, GradHist1d(20, (-0.5, 0.5)), GradHist2d((20, 10), ((-0.5, 0.5), (-1, 1)))]

    def arranged(order: list[int]) -> Body:
        return lambda m, t: losses_of(m, *(part[order] for part in batch(t)))

    once = run(tmp_path / "once", net(), arranged(list(range(B))), quantities)
    twice = run(tmp_path / "twice", net(), arranged([*range(B), *range(B)]), quantities)
    mixed = run(tmp_path / "mixed", net(), arranged([3, 0, 5, 1, 4, 2]), quantities)
    same = ["loss", "grad_norm", "mean_gsnr", "cabs", "hess_trace", "hess_trace:ggn", "hess_max_ev"]
    for t in range(2):
        for name in [*same, "tic_diag", "tic_trace"]:
            assert twice[t, name, ""][0] == pytest.approx(once[t, name, ""][0], rel=1e-9), name
        for name in ("norm_test", "inner_test", "ortho_test"):
            expected = value(once, name, t) * sqrt((B - 1) / (2 * B - 1))
            assert value(twice, name, t) == pytest.approx(expected, rel=1e-10)
        for name in ("grad_hist1d", "grad_hist2d"):
            np.testing.assert_array_equal(value(twice, name, t).counts, 2 * value(once, name, t).counts)
            np.testing.assert_array_equal(value(mixed, name, t).counts, value(once, name, t).counts)
    for key, (number, _) in once.items():
        if not isinstance(number, Histogram) and key[1].split(".")[0] != "hess_max_ev":
            np.testing.assert_allclose(mixed[key][0], number, rtol=1e-9, atol=1e-14, err_msg=str(key))


# -- models in closed form -----------------------------------------------------------------------------


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


# -- known spectra -------------------------------------------------------------------------------------


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


# -- figures of the paper ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "sd", "low", "high", "last_loss", "distance"),
    [
        ("A", 0.98235, 0.01804, 0.93607, 0.99851, 0.678386, 1.389903),
        ("B", -0.97432, 0.01899, -0.99461, -0.93030, 0.677243, 0.153598),
    ],
)
def test_same_loss_curve_opposite_step_lengths(
    tmp_path: Path,
    name: str,
    mean: float,
    sd: float,
    low: float,
    high: float,
    last_loss: float,
    distance: float,
) -> None:
    """The paper's first figure: two runs down a valley that the loss does not tell apart."""
    found, _, _ = watch(valley(), F1_RUNS[name], [[2]] * F1_STEPS, tmp_path, ["loss", "distance", Alpha()])
    alpha = found.series("alpha")
    assert len(alpha) == F1_STEPS - 1
    assert {word.split(":")[0] for word in alpha.status} == {"noise_free"}
    values = np.asarray(alpha.values)
    assert [values.mean(), values.std(), values.min(), values.max()] == pytest.approx(
        [mean, sd, low, high], abs=1e-5
    )
    losses = found.series("loss").values
    assert (losses[0], losses[-1]) == pytest.approx((1.136379, last_loss), abs=1e-5)
    assert found.series("distance").values[-1] == pytest.approx(distance, abs=1e-5)


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
