"""Mixed precision: loss scaling is divided out, autocast is measured as it ran, skipped steps are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit
from session.loops import FIRST_ORDER, Records, batch, differences, events, losses_of, net, records, sgd

NUMBERS = [q for q in FIRST_ORDER if "hist" not in q]


def scaled_run(
    folder: Path, dtype: torch.dtype | None, scaler: torch.amp.GradScaler, steps: int = 4, overflow: int = -1
) -> tuple[Records, Cockpit]:
    """A float32 training with a scaler; in one step a loss is made infinite."""
    model = net(dtype=torch.float32)
    opt = sgd(model)
    with Cockpit(model, opt, quantities=NUMBERS, run=folder) as cockpit:
        for t in range(steps):
            opt.zero_grad()
            x, y = batch(t, dtype=torch.float32)
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                losses = losses_of(model, x, y)
            if t == overflow:
                losses = losses * torch.tensor([1.0, 1, 1, 1, 1, torch.inf])
            with cockpit.watch(losses):
                scaler.scale(losses.mean()).backward()
            scaler.step(opt)
            scaler.update()
    return records(folder), cockpit


def off() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", enabled=False)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_scale_is_divided_out(tmp_path: Path, dtype: torch.dtype | None):
    found, _ = scaled_run(tmp_path / "scaled", dtype, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    expected, _ = scaled_run(tmp_path / "unscaled", dtype, off())
    assert not differences(found, expected, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_near_full_precision(tmp_path: Path, dtype: torch.dtype):
    found, _ = scaled_run(tmp_path / "half", dtype, off())
    expected, _ = scaled_run(tmp_path / "full", None, off())
    names = {"loss", "grad_norm", "norm_test", "update_size"}
    half = {k: v for k, v in found.items() if k[1] in names and not k[2]}
    full = {k: v for k, v in expected.items() if k[1] in names and not k[2]}
    assert not differences(half, full, rtol=0.05)
    assert any(half[k][0] != full[k][0] for k in half), "autocast did nothing"


def test_unscaled_before_clipping(tmp_path: Path):
    """`scaler.unscale_` and clipping between backward and step do not change the gradient we report."""
    model = net(dtype=torch.float32)
    opt, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    x, y = batch(0, dtype=torch.float32)
    expected = torch.autograd.grad(losses_of(model, x, y).mean(), list(model.parameters()))
    with Cockpit(model, opt, quantities=["grad_norm", "update_size"], run=tmp_path / "r") as cockpit:
        losses = losses_of(model, x, y)
        with cockpit.watch(losses):
            scaler.scale(losses.mean()).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(opt)
        scaler.update()
    found = records(tmp_path / "r")
    norm = torch.cat([g.flatten() for g in expected]).norm()
    assert found[0, "grad_norm", ""][0] == pytest.approx(float(norm), rel=1e-5)
    assert found[0, "update_size", ""][0] == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_skipped_step_is_an_event_and_no_step(tmp_path: Path):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    found, cockpit = scaled_run(tmp_path / "r", None, scaler, steps=4, overflow=1)
    assert scaler.get_scale() < 4.0, "the scaler did not skip"
    assert cockpit.step == 3
    assert [e for e in events(tmp_path / "r") if e[1] == "step_skipped"] == [(1, "step_skipped")]
    assert {k[0] for k in found if k[1] == "grad_norm"} == {0, 1, 2}
    assert all(np.isfinite(found[t, "grad_norm", ""][0]) for t in range(3))


def test_after_a_skipped_step_values_are_right(tmp_path: Path):
    """The step after the skipped one is measured alone: nothing of the thrown-away batch is in it."""
    found, _ = scaled_run(tmp_path / "r", None, torch.amp.GradScaler("cpu", init_scale=4.0), 4, overflow=1)
    model = net(dtype=torch.float32)
    opt = sgd(model)
    for step, t in enumerate((0, 2, 3)):
        opt.zero_grad()
        losses = losses_of(model, *batch(t, dtype=torch.float32))
        losses.mean().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = float(torch.cat([g.flatten() for g in grads]).norm())
        assert found[step, "loss", ""][0] == pytest.approx(float(losses.mean().detach()), rel=1e-5)
        assert found[step, "grad_norm", ""][0] == pytest.approx(norm, rel=1e-5)
        opt.step()


def test_first_step_skipped_and_last(tmp_path: Path):
    _, cockpit = scaled_run(tmp_path / "a", None, torch.amp.GradScaler("cpu", init_scale=4.0), 3, overflow=0)
    assert cockpit.step == 2
    assert (0, "step_skipped") in events(tmp_path / "a")
    found, cockpit = scaled_run(
        tmp_path / "b", None, torch.amp.GradScaler("cpu", init_scale=4.0), 3, overflow=2
    )
    assert cockpit.step == 2
    assert (2, "step_skipped") in events(tmp_path / "b")
    assert max(k[0] for k in found if k[1] == "loss") == 1


def test_half_precision_parameters(tmp_path: Path):
    """A model whose parameters are bfloat16 is reduced in float32 at least."""
    model = net(dtype=torch.float32).to(torch.bfloat16)
    full = net(dtype=torch.float32)
    full.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    for name, m in (("half", model), ("full", full)):
        opt = sgd(m)
        with Cockpit(m, opt, quantities=["grad_norm", "norm_test", "loss"], run=tmp_path / name) as cockpit:
            dtype = next(m.parameters()).dtype
            x, y = batch(0, dtype=dtype)
            cockpit.backward(nn.functional.cross_entropy(m(x), y, reduction="none"))
            opt.step()
    half, whole = records(tmp_path / "half"), records(tmp_path / "full")
    for name in ("grad_norm", "norm_test", "loss"):
        assert half[0, name, ""][1] == "ok"
        assert half[0, name, ""][0] == pytest.approx(whole[0, name, ""][0], rel=0.05)
