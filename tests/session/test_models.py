"""Models as people write them: checkpointing, in-place operations, frozen, unused and late parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cockpit import Cockpit, Run
from session.loops import (
    FIRST_ORDER,
    Records,
    batch,
    differences,
    events,
    everything,
    losses_of,
    net,
    records,
    sgd,
    trained,
)


class Net(nn.Module):
    """The small net with something special in the middle; parameters are always the same."""

    def __init__(self, special: str = "") -> None:
        super().__init__()
        first, _, last = net()
        self.first, self.last, self.special = first, last, special
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.special.startswith("checkpoint"):
            h = checkpoint(self.body, x, use_reentrant=self.special.endswith("reentrant"))
        elif self.special == "inplace":
            h = self.first(x).mul_(1.0).tanh_()
        elif self.special == "inplace_input":
            h = self.first(x.clone())
            x.zero_()
            h = torch.tanh(h)
        elif self.special == "control_flow":
            rows = [torch.tanh(self.first(row[None])) if row[0] > -9 else self.first(row[None]) for row in x]
            h = torch.cat(rows)
        elif self.special == "halves":
            h = torch.cat([torch.tanh(self.first(half)) for half in x.split([2, len(x) - 2])])
        else:
            h = self.body(x)
        return self.last(h)

    def body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x))


def run(folder: Path, special: str, quantities: list[Any] | None = None) -> Records:
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        if special == "checkpoint_reentrant":
            x.requires_grad_()
        cockpit.backward(losses_of(model, x, y))

    return trained(folder, body, model=Net(special), quantities=quantities or everything())


@pytest.mark.parametrize("special", ["checkpoint", "inplace", "control_flow", "halves"])
def test_same_numbers_as_the_plain_net(tmp_path: Path, special: str):
    assert not differences(run(tmp_path / "special", special), run(tmp_path / "plain", ""))


def test_reentrant_checkpointing(tmp_path: Path):
    """Only `backward` is allowed there: first-order values are right, what is not possible has a reason."""
    found = run(tmp_path / "special", "checkpoint_reentrant", list(FIRST_ORDER))
    expected = run(tmp_path / "plain", "", list(FIRST_ORDER))
    silent = {k[:2] for k, (v, why) in found.items() if why.startswith("not_covered")}
    known = {k: v for k, v in found.items() if k[:2] not in silent}
    assert {"loss", "grad_norm", "update_size", "distance"} <= {name for _, name, _ in known}
    assert not differences(known, {k: v for k, v in expected.items() if k in known})


def test_input_overwritten_after_use(tmp_path: Path):
    """A layer's input that is overwritten before the optimiser steps: a gap, never a wrong value."""
    model = net()
    opt = sgd(model)
    expected = trained(tmp_path / "plain", lambda c, m, o, t: c.backward(losses_of(m, *batch(t))))
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(3):
            opt.zero_grad()
            x, y = batch(t)
            cockpit.backward(losses_of(model, x, y))
            x.fill_(7.0)  # a buffer that the loader fills again
            opt.step()
    found = records(tmp_path / "r")
    for key, (value, why) in found.items():
        if why == "ok" and not key[1].startswith("hess_max_ev."):
            assert not differences({key: (value, why)}, {key: expected[key]}), key
    assert found[2, "norm_test", ""][1] == "ok"


def test_channels_last(tmp_path: Path):
    """The memory layout changes no value."""
    data = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = []
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 2)
            ).double()
        model = model.to(memory_format=layout)

        def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
            x = data.to(memory_format=layout)
            cockpit.backward(F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1, 1]), reduction="none"))

        seen.append(trained(tmp_path / str(layout), body, model=model))
    assert not differences(seen[1], seen[0])


def test_frozen_parameters(tmp_path: Path):
    """Frozen ones are no part of anything and are listed."""
    model = net()
    model[0].weight.requires_grad_(False)
    found = trained(tmp_path / "r", lambda c, m, o, t: c.backward(losses_of(m, *batch(t))), model=model)
    scopes = {scope for _, name, scope in found if name != "learning_rate"}
    assert scopes == {"", "0.bias", "2.weight", "2.bias"}
    meta = Run(tmp_path / "r").meta
    assert meta["coverage"]["0.weight"]["way"] == "frozen"
    assert meta["parameters"]["0.weight"]["trainable"] is False
    losses = losses_of(net(), *batch(0))
    assert found[0, "loss", ""][0] == pytest.approx(float(losses.mean().detach()), rel=1e-12)


class WithSpare(nn.Module):
    """A net with a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.spare = net(), nn.Linear(2, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


def test_unused_parameters(tmp_path: Path):
    """Zero in norms, absent from histograms and from D, listed as unused."""
    found = trained(
        tmp_path / "spare", lambda c, m, o, t: c.backward(losses_of(m, *batch(t))), model=WithSpare()
    )
    expected = trained(tmp_path / "plain", lambda c, m, o, t: c.backward(losses_of(m, *batch(t))))
    whole = {k: v for k, v in found.items() if not k[2]}
    assert not differences(whole, {k: v for k, v in expected.items() if not k[2]})
    assert found[0, "grad_norm", "spare.weight"] == (0.0, "ok")
    assert (0, "grad_hist1d", "spare.weight") not in found
    assert Run(tmp_path / "spare").meta["coverage"]["spare.weight"]["way"] == "unused"


def test_parameters_unfrozen_later(tmp_path: Path):
    """From the step of thawing on they take part, with right values; distance has no origin for them."""
    model = net()
    model[0].requires_grad_(False)
    opt = sgd(model)
    with Cockpit(model, opt, quantities=everything(), run=tmp_path / "r") as cockpit:
        for t in range(4):
            if t == 2:
                model[0].requires_grad_(True)
            opt.zero_grad()
            losses = losses_of(model, *batch(t))
            trainable = [p for p in model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(losses.mean(), trainable, retain_graph=True)
            norm = float(torch.cat([g.flatten() for g in grads]).norm())
            cockpit.backward(losses)
            opt.step()
            cockpit.log(expected=0.0, norm=norm)
    found = records(tmp_path / "r")
    for t in range(4):
        assert found[t, "grad_norm", ""][0] == pytest.approx(found[t + 1, "norm", ""][0], rel=1e-10)
        assert found[t, "norm_test", ""][1] == "ok"
        assert ((t, "grad_hist1d", "0.weight") in found) == (t >= 2)
    assert found[1, "alpha", ""][1] != "ok" or np.isfinite(found[1, "alpha", ""][0])
    assert (2, "gap") not in events(tmp_path / "r")


def test_layers_added_while_nothing_is_due(tmp_path: Path):
    """A layer that joins the model and its optimiser in mid-training is seen from the next step on."""
    model = net()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=["grad_norm", "norm_test"], run=tmp_path / "r") as cockpit:
        for t in range(3):
            if t == 1:
                model.append(nn.Linear(3, 3).double())
                opt.add_param_group({"params": list(model[3].parameters())})
            opt.zero_grad()
            losses = losses_of(model, *batch(t))
            G = [torch.autograd.grad(x, list(model.parameters()), retain_graph=True) for x in losses]
            flat = torch.stack([torch.cat([g.flatten() for g in row]) for row in G])
            g = flat.mean(0)
            expected = float(((flat - g).square().sum() / (30 * (g @ g))).sqrt())
            cockpit.backward(losses)
            opt.step()
            cockpit.log(expected=expected)
    found = records(tmp_path / "r")
    for t in range(3):
        assert found[t, "norm_test", ""][0] == pytest.approx(found[t + 1, "expected", ""][0], rel=1e-9)


def test_model_called_several_times(tmp_path: Path):
    """Two forward passes and one backward pass: the second is what layers see twice."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        losses = losses_of(model, x, y) + 0.5 * losses_of(model, 2 * x, y)
        cockpit.backward(losses)

    def once(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        first, second = model(torch.cat([x, 2 * x])).chunk(2)
        each = [F.cross_entropy(out, y, reduction="none") for out in (first, second)]
        cockpit.backward(each[0] + 0.5 * each[1])

    found = trained(tmp_path / "twice", body)
    assert all(found[t, "norm_test", ""][1] == "ok" for t in range(3))
    assert not differences(found, trained(tmp_path / "once", once))
