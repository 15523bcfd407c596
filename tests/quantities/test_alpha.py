"""Step lengths that are known: on quadratics, by least squares, and in the first figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit import Alpha
from cockpit.testing import problem
from quantities.closed_forms import F64, Quadratic, run
from reference.figures import F1_RUNS, F1_STEPS, valley
from reference.step import End, least_squares
from reference.twins import train
from session.loops import batch, losses_of, net, sgd
from watched import watch


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
