"""Batches of every size, and numbers that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, Histogram
from reference import noise, step
from session.loops import (
    Records,
    batch,
    events,
    everything,
    individual_gradients,
    losses_of,
    net,
    records,
    sgd,
    trained,
)


def sized(folder: Path, sizes: list[int]) -> Records:
    return trained(
        folder,
        lambda c, m, o, t: c.backward(losses_of(m, *batch(t, sizes[t]))) if sizes[t] else None,
        steps=len(sizes),
    )


def test_batch_of_one(tmp_path: Path):
    found = sized(tmp_path / "r", [1, 1, 1])
    for name in ("norm_test", "inner_test", "ortho_test", "mean_gsnr", "cabs", "early_stopping"):
        value, why = found[1, name, ""]
        assert np.isnan(value)
        assert why.startswith("batch_size_1"), name
    assert found[0, "alpha", ""][1].startswith(("slopes_only", "concave"))
    assert found[1, "grad_norm", ""][1] == found[1, "hess_max_ev", ""][1] == "ok"
    assert not [e for e in events(tmp_path / "r") if e[1] == "gap"]


def test_smaller_last_batch(tmp_path: Path):
    """Each end of a step has its own number of examples; α uses the variances of means."""
    sizes, model = [6, 6, 2, 6], net()
    found = sized(tmp_path / "r", sizes)
    opt = sgd(model)
    ends = []
    parameters = list(model.parameters())
    seen = []
    for t, n in enumerate(sizes):
        opt.zero_grad()
        losses = losses_of(model, *batch(t, n))
        G = torch.cat([g.flatten(1) for g in individual_gradients(losses, parameters)], 1)
        before = nn.utils.parameters_to_vector(parameters).detach()
        losses.mean().backward()
        opt.step()
        seen.append((losses.detach(), G, nn.utils.parameters_to_vector(parameters).detach() - before))
        assert found[t, "norm_test", ""][0] == pytest.approx(noise.norm_test(G.numpy())[0], rel=1e-9)
        assert found[t, "inner_test", ""][0] == pytest.approx(noise.inner_test(G.numpy())[0], rel=1e-9)
    for t in range(3):
        s = seen[t][2]
        ends = [step.End.of(seen[k][0].numpy(), (seen[k][1] @ s).numpy()) for k in (t, t + 1)]
        value, why = step.alpha(*ends)
        assert found[t, "alpha", ""][0] == pytest.approx(value, rel=1e-8, nan_ok=True)
        assert found[t, "alpha", ""][1].split(":")[0] == why


def test_empty_batch(tmp_path: Path):
    """A batch without examples is told and does no harm; the step is not counted as watched."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t, n in enumerate((6, 0, 6)):
            opt.zero_grad()
            x, y = batch(t, n)
            losses = losses_of(model, x, y)
            with cockpit.watch(losses):
                losses.sum().backward()
            opt.step()
    found = records(tmp_path / "r")
    assert (1, "empty_batch") in events(tmp_path / "r")
    assert found[2, "norm_test", ""][1] == "ok"
    assert (1, "norm_test", "") not in found or found[1, "norm_test", ""][1] != "ok"


def test_empty_micro_batch(tmp_path: Path):
    """One of two micro-batches is empty: the step is that of the other."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        for part in (slice(0, 6), slice(6, 6)):
            losses = losses_of(model, x[part], y[part])
            with cockpit.watch(losses):
                (losses.sum() / 6).backward()

    found = trained(tmp_path / "r", body)
    plain = trained(tmp_path / "plain", lambda c, m, o, t: c.backward(losses_of(m, *batch(t))))
    for t in range(3):
        for name in ("norm_test", "inner_test", "loss", "hess_max_ev", "grad_norm"):
            assert found[t, name, ""][0] == pytest.approx(plain[t, name, ""][0], rel=1e-8)


def test_nan_in_one_loss(tmp_path: Path):
    """Event, NaN with a reason or counted apart, and training goes on to right values."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        if t == 1:
            x[2, 0] = torch.nan
        cockpit.backward(losses_of(model, x, y))
        if t == 1:
            opt.zero_grad()  # what a careful user does: no step on NaN, but one is taken with zeros
            for p in model.parameters():
                p.grad = torch.zeros_like(p)

    found = trained(tmp_path / "r", body, steps=4)
    kinds = events(tmp_path / "r")
    assert (1, "nonfinite_loss") in kinds
    assert (1, "nonfinite_gradient") in kinds
    assert np.isnan(found[1, "loss", ""][0])
    histogram = found[1, "grad_hist1d", ""][0]
    assert isinstance(histogram, Histogram)
    assert histogram.nan > 0
    assert histogram.total == 6 * sum(p.numel() for p in net().parameters())
    assert found[1, "grad_hist2d", ""][0].total == histogram.total
    for name in (
        "grad_norm",
        "norm_test",
        "inner_test",
        "mean_gsnr",
        "cabs",
        "early_stopping",
        "hess_max_ev",
    ):
        value, why = found[1, name, ""]
        assert np.isnan(value), name
        assert why != "ok", name
    for name in ("norm_test", "inner_test", "hess_max_ev", "loss", "grad_norm"):
        assert found[2, name, ""][1] == "ok", name
        assert np.isfinite(found[2, name, ""][0]), name


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nonfinite_gradient_with_finite_losses(tmp_path: Path, bad: float):
    """A layer whose backward pass makes non-finite numbers out of finite losses."""

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
            return g * bad

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        h = model[1](model[0](x))
        losses = nn.functional.cross_entropy(model[2](Bad.apply(h) if t == 1 else h), y, reduction="none")
        cockpit.backward(losses)
        if t == 1:
            for p in model.parameters():
                p.grad = torch.zeros_like(p)

    found = trained(tmp_path / "r", body, steps=3)
    kinds = events(tmp_path / "r")
    assert (1, "nonfinite_gradient") in kinds
    assert (1, "nonfinite_loss") not in kinds
    histogram = found[1, "grad_hist1d", "0.weight"][0]
    assert histogram.nan + histogram.inf == histogram.total
    assert found[1, "grad_norm", "2.weight"][0] > 0
    assert not np.isfinite(found[1, "grad_norm", ""][0])
    assert np.isfinite(found[2, "grad_norm", ""][0])


def test_training_diverges_and_is_recorded_to_the_end(tmp_path: Path):
    """Every step has a loss record although all numbers are NaN in the end."""
    model = net()
    opt = sgd(model, lr=1e200)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(5):
            opt.zero_grad()
            cockpit.backward(losses_of(model, *batch(t)).square())
            opt.step()
    found = records(tmp_path / "r")
    assert [k[0] for k in sorted(found) if k[1:] == ("loss", "")] == [0, 1, 2, 3, 4]
    assert np.isnan(found[4, "loss", ""][0])
    assert [k[0] for k in sorted(found) if k[1:] == ("norm_test", "")] == [0, 1, 2, 3, 4]
