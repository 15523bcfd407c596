"""The closed form of α against weighted least squares, and its verdicts."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from reference.step import End, alpha, least_squares


def test_closed_form_is_weighted_least_squares() -> None:
    random = np.random.default_rng(0)
    verdicts = []
    for _ in range(1000):
        B = random.integers(2, 9, 2)
        ends = [
            End.of(random.normal(1, 0.5, n), random.normal(m, 0.4, n))
            for n, m in zip(B, (-0.8, 0.1), strict=True)
        ]
        value, status = alpha(*ends)
        verdicts.append(status)
        _, a1, a2 = least_squares(*ends)
        assert (a2 < 0) == (status == "concave")
        assert status == "concave" or value == pytest.approx(-2 * a2 / a1 - 1, rel=1e-7)
    assert {"ok", "concave", "uphill"} <= set(verdicts)
    assert verdicts.count("ok") > 500


def test_consistent_observations_give_minus_the_ratio_of_slopes() -> None:
    start, end = End(1.0, -0.8, 0.1, 0.2, 4), End(1.0 - 0.3, 0.2, 0.3, 0.1, 4)
    assert alpha(start, end)[0] == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("d0", "d1", "status"),
    [(-1.0, 0.5, "ok"), (-1.0, -2.0, "concave"), (1.0, 2.0, "uphill"), (0.0, 1.0, "flat")],
)
def test_verdicts(d0: float, d1: float, status: str) -> None:
    start, end = End(1.0, d0, 0.1, 0.1, 4), End(1.0 + (d0 + d1) / 2, d1, 0.1, 0.1, 4)
    value, found = alpha(start, end)
    assert found == status
    assert isnan(value) == (status in ("concave", "flat"))
    assert status != "uphill" or value == pytest.approx(-2.0)


def test_without_noise() -> None:
    start, end = End(1.0, -1.0, 0.0, 0.0, 4), End(0.75, 0.5, 0.0, 0.0, 4)
    assert alpha(start, end) == (0.5, "noise_free")
    # Losses that contradict the slopes: all four observations count alike, as in plain least squares.
    off = End(0.25, 0.5, 0.0, 0.0, 4)
    value, status = alpha(start, off)
    even = [End(e.f, e.d, 1.0, 1.0, 4) for e in (start, off)]
    assert status == "noise_free"
    _, a1, a2 = least_squares(*even)
    assert value == pytest.approx(-2 * a2 / a1 - 1, rel=1e-9)


def test_unequal_batches_use_the_variance_of_the_mean() -> None:
    losses = np.array([1.0, 3.0])
    assert End.of(losses, losses).f_var == pytest.approx(1.0)
    assert End.of(np.tile(losses, 2), np.tile(losses, 2)).f_var == pytest.approx(1 / 3)
