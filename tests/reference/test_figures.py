"""Oracles 20 and 21: the twins reproduce the numbers of two figures of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from reference.figures import F1_RUNS, F1_STEPS, F11_TRAIN, descent, product, valley
from reference.twins import train


@pytest.mark.parametrize(
    ("run", "mean", "sd", "low", "high", "last_loss", "distance"),
    [
        ("A", 0.98235, 0.01804, 0.93607, 0.99851, 0.678386, 1.389903),
        ("B", -0.97432, 0.01899, -0.99461, -0.93030, 0.677243, 0.153598),
    ],
)
def test_same_loss_curve_opposite_alpha(
    run: str, mean: float, sd: float, low: float, high: float, last_loss: float, distance: float
) -> None:
    twin = train(valley(), F1_RUNS[run], [[2]] * F1_STEPS)
    alphas = [twin.value(t, "alpha") for t in range(F1_STEPS - 1)]
    assert {twin.status(t, "alpha") for t in range(F1_STEPS - 1)} == {"noise_free"}
    found = [np.mean(alphas), np.std(alphas), min(alphas), max(alphas)]
    np.testing.assert_allclose(found, [mean, sd, low, high], atol=1e-5)
    assert twin.value(0, "loss") == pytest.approx(1.136379, abs=1e-6)
    assert twin.value(19, "loss") == pytest.approx(last_loss, abs=1e-5)
    assert twin.value(19, "distance") == pytest.approx(distance, abs=1e-5)


def test_product_starts_as_printed() -> None:
    twin = train(product(), descent, [[F11_TRAIN]], curvature=True)
    assert twin.value(0, "loss") == pytest.approx(1.676708, abs=1e-5)
    assert twin.value(0, "hess_max_ev") == pytest.approx(5.194136, abs=1e-5)
    low = twin.value(0, "hess_trace:diag_h") - twin.value(0, "hess_max_ev")
    assert low == pytest.approx(-0.395760, abs=1e-5)


def test_gradient_descent_stays_in_its_minimum() -> None:
    problem = product()
    (x,), y = problem.batch(F11_TRAIN)
    S_xx, S_xy = float(x @ x / len(x)), float(x @ y / len(x))
    assert (S_xx, S_xy) == pytest.approx((0.827306, 1.011823), abs=1e-5)
    assert 4 * abs(S_xy) == pytest.approx(4.047293, abs=1e-5)
    model = problem.build()
    optimizer = descent(model)
    for _ in range(100):
        optimizer.zero_grad()
        loss = problem.losses(model, (x,), y).mean()
        loss.backward()
        optimizer.step()
    w1, w2 = (float(p.detach()) for p in model.parameters())
    assert (w1, w2) == pytest.approx((0.680794, 1.796480), abs=1e-5)
    assert float(loss.detach()) == pytest.approx(0.759325, abs=1e-5)
    assert 2 * S_xx * (w1**2 + w2**2) == pytest.approx(6.106881, abs=1e-5)


def test_hessian_of_the_twin_is_the_closed_form() -> None:
    twin = train(product(), descent, [[F11_TRAIN]] * 4, curvature=True, dense=[3])
    w1, w2 = (float(twin.value(3, "parameters", k)) for k in ("w1", "w2"))
    (x,), y = product().batch(F11_TRAIN)
    S_xx, S_xy = float((x * x).mean()), float((x * y).mean())
    mixed = 2 * (w1 * w2 * S_xx - S_xy) + 2 * S_xx * w1 * w2
    H = np.array([[2 * S_xx * w2**2, mixed], [mixed, 2 * S_xx * w1**2]])
    assert twin.value(3, "hess_max_ev") == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-12)
    assert twin.value(3, "hess_trace:diag_h", "w1") == pytest.approx(H[0, 0], rel=1e-12)
    assert twin.value(3, "hess_trace:diag_ggn_exact", "w2") == pytest.approx(H[1, 1], rel=1e-12)
