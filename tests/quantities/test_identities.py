"""Identities between quantities, which any net obeys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cockpit import (
    CABS,
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
from quantities.closed_forms import F64, GGN, Body, mlp, run, value
from session.loops import batch, losses_of, net


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
