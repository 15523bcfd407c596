"""However the losses are weighed, individual gradients and means are those of the examples' own losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from session.loops import (
    batch,
    differences,
    events,
    everything,
    individual_gradients,
    losses_of,
    net,
    plain,
    records,
    sgd,
    trained,
)

WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25, 1.5], dtype=torch.float64)


@pytest.mark.parametrize(
    "objective",
    [
        lambda x: x.sum(),
        lambda x: 65536 * x.mean(),
        lambda x: (WEIGHTS * x).sum(),
        lambda x: (WEIGHTS * x).sum() / WEIGHTS.sum(),
        lambda x: x @ WEIGHTS - 0.3 * x[0],
        lambda x: 1e-3 * x.mean() + x[2:].sum(),
        lambda x: x.logsumexp(0),
    ],
    ids=["sum", "scaled", "weighted", "weighted_mean", "negative", "uneven", "nonlinear"],
)
def test_weights_are_divided_out(tmp_path: Path, objective: Callable[[Tensor], Tensor]):
    """At the first step, where parameters are the same; the step taken (and α with it) differs by design."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        with cockpit.watch(losses):
            objective(losses).backward()

    found = trained(tmp_path / "weighted", body, steps=1)
    expected = trained(tmp_path / "plain", plain, steps=1)
    assert not differences(found, expected, leave_out=["update_size", "alpha"])


def test_zero_weights_are_left_out(tmp_path: Path):
    """Examples that do not count in the objective do not count in the statistics, and an event says so."""
    mask = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    kept = mask.bool()

    def masked(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        with cockpit.watch(losses):
            ((mask * losses).sum() / mask.sum()).backward()

    def without(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        cockpit.backward(losses_of(model, x[kept], y[kept]))

    found, expected = trained(tmp_path / "masked", masked), trained(tmp_path / "without", without)
    assert not differences(found, expected)
    assert [e for e in events(tmp_path / "masked") if e[1] == "zero_weight"] == [
        (t, "zero_weight") for t in range(3)
    ]


def test_all_weights_zero(tmp_path: Path):
    """A batch that counts for nothing leaves gaps with reasons; training goes on."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        with cockpit.watch(losses):
            (losses.sum() * (0.0 if t == 1 else 1.0)).backward()

    found = trained(tmp_path / "r", body)
    assert (1, "zero_weight") in events(tmp_path / "r")
    assert not np.isfinite(found[1, "norm_test", ""][0])
    assert found[1, "norm_test", ""][1] != "ok"
    assert found[2, "norm_test", ""][1] == "ok"
    assert (1, "gap") not in events(tmp_path / "r")


def test_weights_between_micro_batches(tmp_path: Path):
    """Weighted micro-batches with examples of weight zero are one batch of the examples that count."""
    weights = torch.tensor([1.0, 2, 0, 0.5, 0.5, 0], dtype=torch.float64)

    def pieces(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        for part in (slice(0, 2), slice(2, 6)):
            losses = losses_of(model, x[part], y[part])
            with cockpit.watch(losses):
                (weights[part] * losses).sum().backward()

    def joined(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        kept = weights != 0
        losses = losses_of(model, x[kept], y[kept])
        with cockpit.watch(losses):
            (weights[kept] * losses).sum().backward()

    assert not differences(trained(tmp_path / "pieces", pieces), trained(tmp_path / "joined", joined))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_token_losses(tmp_path: Path, reduction: str):
    """The user says what an example's loss is; gradients are those of that loss."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)).double()
    opt = sgd(model)
    tokens = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(3))

    def losses() -> Tensor:
        each = nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens.roll(1, 1), reduction="none")
        return each.mean(1) if reduction == "mean" else each.sum(1)

    parameters = list(model.parameters())
    G = torch.cat([g.flatten(1) for g in individual_gradients(losses(), parameters)], 1)
    with Cockpit(model, opt, quantities=["norm_test", "loss", "grad_norm"], run=tmp_path / "r") as cockpit:
        value = losses()
        cockpit.backward(value)
        opt.step()
    found, g = records(tmp_path / "r"), G.mean(0)
    expected = ((G - g).square().sum() / (5 * 4 * (g @ g))).sqrt()
    assert found[0, "norm_test", ""][0] == pytest.approx(float(expected), rel=1e-10)
    assert found[0, "grad_norm", ""][0] == pytest.approx(float(g.norm()), rel=1e-10)
    assert found[0, "loss", ""][0] == pytest.approx(float(value.mean().detach()), rel=1e-12)


def test_clipping(tmp_path: Path):
    """The gradient is that of the backward pass, the step is the one taken."""
    model = net()
    opt = sgd(model, lr=0.5)
    found = {}
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(2):
            opt.zero_grad()
            losses = losses_of(model, *batch(t))
            G = torch.cat([g.flatten(1) for g in individual_gradients(losses, list(model.parameters()))], 1)
            cockpit.backward(losses)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            before = nn.utils.parameters_to_vector(model.parameters()).detach()
            opt.step()
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            found[t] = (float(G.mean(0).norm()), float((after - before).norm()))
    run = records(tmp_path / "r")
    for t, (gradient, update) in found.items():
        assert update == pytest.approx(0.5 * 0.01, rel=1e-3)
        assert run[t, "grad_norm", ""][0] == pytest.approx(gradient, rel=1e-10)
        assert run[t, "update_size", ""][0] == pytest.approx(update, rel=1e-10)


def test_penalty_in_the_objective(tmp_path: Path):
    """A term that is no example's loss moves the parameters but is in nobody's individual gradient."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        with cockpit.watch(losses):
            (losses.mean() + sum(p.square().sum() for p in model.parameters())).backward()

    found = trained(tmp_path / "penalty", body, steps=1)
    expected = trained(tmp_path / "plain", plain, steps=1)
    tested = ["norm_test", "inner_test", "ortho_test", "mean_gsnr", "loss", "grad_hist1d"]
    assert not differences(
        {k: v for k, v in found.items() if k[1] in tested},
        {k: v for k, v in expected.items() if k[1] in tested},
    )
