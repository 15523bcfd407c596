"""Optimisers: closures, several of them, groups, schedulers, steps nobody watched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit import CABS, Alpha, Cockpit, GradHist1d, HessMaxEV, InnerTest, UpdateSize, every
from session.loops import (
    FIRST_ORDER,
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


def test_sgd_with_a_closure(tmp_path: Path):
    """The backward pass inside `step` is the same step as one before it."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "closure") as cockpit:
        for t in range(3):

            def closure() -> Tensor:
                opt.zero_grad()
                losses = losses_of(model, *batch(t))
                cockpit.backward(losses)
                return losses.detach().mean()

            opt.step(closure)
    assert not differences(records(tmp_path / "closure"), trained(tmp_path / "plain", plain))


def test_lbfgs(tmp_path: Path):
    """Several evaluations, one step: seen where it began, and the whole movement is the update."""
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    expected = {}
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(3):
            x, y = batch(t)
            first = losses_of(model, x, y)
            G = torch.cat([g.flatten(1) for g in individual_gradients(first, list(model.parameters()))], 1)
            calls = []

            def closure() -> Tensor:
                opt.zero_grad()
                losses = losses_of(model, x, y)
                cockpit.backward(losses)
                calls.append(1)
                return losses.detach().mean()

            before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            opt.step(closure)
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            assert len(calls) > 1
            expected[t] = (
                float(first.mean().detach()),
                float(G.mean(0).norm()),
                float((after - before).norm()),
            )
    found = records(tmp_path / "r")
    assert cockpit.step == 3
    for t, (loss, norm, update) in expected.items():
        assert found[t, "loss", ""][0] == pytest.approx(loss, rel=1e-10)
        assert found[t, "grad_norm", ""][0] == pytest.approx(norm, rel=1e-10)
        assert found[t, "update_size", ""][0] == pytest.approx(update, rel=1e-10)
    assert not [e for e in events(tmp_path / "r") if e[1] in ("gap", "step_skipped")]


def test_lbfgs_is_not_changed(tmp_path: Path):
    def fit(watched: bool) -> list[Tensor]:
        model = net()
        opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
        cockpit = Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") if watched else None
        for t in range(3):

            def closure() -> Tensor:
                opt.zero_grad()
                losses = losses_of(model, *batch(t))
                if cockpit is None:
                    losses.mean().backward()
                else:
                    cockpit.backward(losses)
                return losses.detach().mean()

            opt.step(closure)
        if cockpit is not None:
            cockpit.close()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(fit(True), fit(False), strict=True))


def test_parameter_groups(tmp_path: Path):
    """One learning rate for each group; the suggested batch size uses each parameter's own."""
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.01}]
    opt = torch.optim.SGD(groups)
    losses = losses_of(model, *batch(0))
    G = individual_gradients(losses, list(model.parameters()))
    variances = [float(g.var(0, unbiased=False).sum()) for g in G]
    expected = sum(lr * v for lr, v in zip((0.1, 0.1, 0.01, 0.01), variances, strict=True))
    with Cockpit(model, opt, quantities=[CABS()], run=tmp_path / "r") as cockpit:
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    found = records(tmp_path / "r")
    assert found[0, "learning_rate", "group_0"][0] == 0.1
    assert found[0, "learning_rate", "group_1"][0] == 0.01
    assert found[0, "cabs", ""][0] == pytest.approx(expected / float(losses.mean().detach()), rel=1e-9)


def test_learning_rate_scheduler(tmp_path: Path):
    """The learning rate of a step is the one the step was taken with."""
    model = net()
    opt = sgd(model, lr=0.4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    with Cockpit(model, opt, quantities=["loss", "cabs"], run=tmp_path / "r") as cockpit:
        for t in range(4):
            opt.zero_grad()
            cockpit.backward(losses_of(model, *batch(t)))
            opt.step()
            scheduler.step()
    found = records(tmp_path / "r")
    rates = [found[t, "learning_rate", ""][0] for t in range(4)]
    assert rates == pytest.approx([0.4, 0.2, 0.1, 0.05], rel=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_derived_for_plain_sgd(tmp_path: Path, optimizer: str):
    make = sgd if optimizer == "sgd" else (lambda m: torch.optim.Adam(m.parameters()))
    found = trained(tmp_path / "r", plain, optimizer=make, quantities=["cabs", "early_stopping"])
    word = "ok" if optimizer == "sgd" else "derived_for_sgd"
    assert all(found[t, n, ""][1].split(":")[0] == word for t in range(3) for n in ("cabs", "early_stopping"))


def test_tensor_learning_rate_and_fused_flags(tmp_path: Path):
    """Optimisers of every implementation call the hooks we listen to."""
    for k, options in enumerate(({"foreach": True}, {"foreach": False}, {"fused": True}, {"amsgrad": True})):
        found = trained(
            tmp_path / str(k),
            plain,
            optimizer=lambda m: (
                torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01), **options)
                if not options.get("foreach")
                else torch.optim.Adam(m.parameters(), lr=0.01, **options)
            ),
            quantities=["update_size"],
        )
        assert [t for t, name, scope in found if (name, scope) == ("update_size", "")] == [0, 1, 2]
        assert found[0, "learning_rate", ""][0] == pytest.approx(0.01)


def two(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.SGD(model[2].parameters(), lr=0.1),
    ]


def test_two_optimizers_take_one_step(tmp_path: Path):
    model = net()
    opts = two(model)
    with Cockpit(model, opts, quantities=everything(), run=tmp_path / "two") as cockpit:
        for t in range(3):
            for opt in opts:
                opt.zero_grad()
            cockpit.backward(losses_of(model, *batch(t)))
            for opt in opts:
                opt.step()
    assert cockpit.step == 3
    found = {k: v for k, v in records(tmp_path / "two").items() if not k[2].startswith("group_")}
    assert not differences(found, trained(tmp_path / "one", plain))


def test_one_optimizer_steps_every_second_time(tmp_path: Path):
    """A step ends when the next backward pass comes, at the latest; the update is what has moved."""
    model = net()
    opts = two(model)
    expected = []
    with Cockpit(model, opts, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(4):
            for opt in opts:
                opt.zero_grad()
            losses = losses_of(model, *batch(t))
            G = torch.cat([g.flatten(1) for g in individual_gradients(losses, list(model.parameters()))], 1)
            before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            cockpit.backward(losses)
            opts[0].step()
            if t % 2:
                opts[1].step()
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            expected.append((float(G.mean(0).norm()), float((after - before).norm())))
    found = records(tmp_path / "r")
    assert cockpit.step == 4
    for t, (norm, update) in enumerate(expected):
        assert found[t, "grad_norm", ""][0] == pytest.approx(norm, rel=1e-10)
        assert found[t, "update_size", ""][0] == pytest.approx(update, rel=1e-10)
        assert found[t, "hess_max_ev", ""][1] == "ok"
    assert not [e for e in events(tmp_path / "r") if e[1] in ("gap", "step_skipped", "unwatched_step")]


def test_alternating_networks_with_two_cockpits(tmp_path: Path):
    """Generator and discriminator: each cockpit sees its own network's steps and nothing of the other's."""
    generator, critic = net(1), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    opt_g, opt_c = sgd(generator), sgd(critic)
    expected: dict[str, list[float]] = {"g": [], "c": []}

    def norm(losses: Tensor, model: nn.Module) -> float:
        grads = torch.autograd.grad(losses.mean(), list(model.parameters()), retain_graph=True)
        return float(torch.cat([g.flatten() for g in grads]).norm())

    names = ["grad_norm", "norm_test", "loss", "update_size", HessMaxEV(tolerance=1e-3), "alpha"]
    with (
        Cockpit(generator, opt_g, quantities=names, run=tmp_path / "g") as cockpit_g,
        Cockpit(critic, opt_c, quantities=names, run=tmp_path / "c") as cockpit_c,
    ):
        for t in range(3):
            x, _ = batch(t)
            opt_c.zero_grad()
            fake = generator(x).detach()
            real = nn.functional.softplus(-critic(x[:, :3])).squeeze(1)
            losses = real + nn.functional.softplus(critic(fake)).squeeze(1)
            expected["c"].append(norm(losses, critic))
            cockpit_c.backward(losses)
            opt_c.step()
            opt_g.zero_grad()
            losses = nn.functional.softplus(-critic(generator(x))).squeeze(1)
            expected["g"].append(norm(losses, generator))
            cockpit_g.backward(losses)
            opt_g.step()
    for key in ("g", "c"):
        found = records(tmp_path / key)
        for t in range(3):
            assert found[t, "grad_norm", ""][0] == pytest.approx(expected[key][t], rel=1e-9)
            assert found[t, "norm_test", ""][1] == "ok"
            assert found[t, "hess_max_ev", ""][1] == "ok"
        assert not events(tmp_path / key)
    assert (cockpit_g.step, cockpit_c.step) == (3, 3)


def test_step_without_a_watched_backward_pass(tmp_path: Path):
    """Told in an event; the step counts, has no values, and the next one is right."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        losses = losses_of(model, *batch(t))
        if t == 1:
            losses.mean().backward()
        else:
            cockpit.backward(losses)

    found = trained(tmp_path / "r", body, steps=4)
    expected = trained(tmp_path / "plain", plain, steps=4)
    assert [e for e in events(tmp_path / "r") if e[1] == "unwatched_step"] == [(1, "unwatched_step")]
    known = {k: v for k, v in found.items() if k[0] in (2, 3)}
    assert not differences(known, {k: v for k, v in expected.items() if k[0] in (2, 3)})
    assert not [k for k in found if k[0] == 1 and k[1] not in ("learning_rate",)]
    for t in (0, 1):
        assert (t, "alpha", "") not in found or np.isnan(found[t, "alpha", ""][0])


def test_optimizer_steps_before_anything(tmp_path: Path):
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        opt.step()
        opt.zero_grad()
        cockpit.backward(losses_of(model, *batch(0)))
        opt.step()
    found = records(tmp_path / "r")
    assert cockpit.step == 2
    assert found[1, "norm_test", ""][1] == "ok"
    assert found[1, "distance", ""] == (0.0, "ok")


def test_schedule_with_steps_between(tmp_path: Path):
    """Quantities due at some steps only have there the values they have when all are due."""

    sparse = [
        Alpha(when=every(3)),
        InnerTest(when=every(2)),
        HessMaxEV(when=every(4), tolerance=1e-9, products=500),
        UpdateSize(when=every(3)),
        GradHist1d(when=every(5)),
    ]
    found = trained(tmp_path / "sparse", plain, steps=7, quantities=sparse)
    expected = trained(tmp_path / "all", plain, steps=7)
    named = {k: v for k, v in found.items() if k[1] != "learning_rate"}
    assert not differences(named, {k: v for k, v in expected.items() if k in named})
    steps = {
        name: sorted(t for t, n, s in found if (n, s) == (name, "")) for name in {n for _, n, _ in named}
    }
    assert steps["alpha"] == [0, 3]
    assert steps["inner_test"] == [0, 2, 4, 6]
    assert steps["hess_max_ev"] == [0, 4]
    assert not events(tmp_path / "sparse")


def test_maximize(tmp_path: Path):
    """Ascent: the true step is used, so α is far from a descent's."""
    make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1, maximize=True)  # noqa: E731
    found = trained(tmp_path / "r", plain, optimizer=make, quantities=list(FIRST_ORDER))
    assert found[0, "alpha.slope_start", ""][0] > 0
