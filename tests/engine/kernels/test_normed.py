"""The gradients of a LayerNorm and of an RMSNorm in one look: those of the formula, written out in float64."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.kernels import normed, trial
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.layers.norm import batch_norm, layer_norm
from engine.kernels.factors import inputs_and_gradients


def written_out(x: Tensor, dy: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    shape = x.shape[2:]
    xhat = F.layer_norm(x.double(), shape, eps=eps) if centred else F.rms_norm(x.double(), shape, eps=eps)
    return (xhat * dy.double()).sum(1), dy.double().sum(1)


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 70, 40), (1, 1, 1), (2, 3, 768), (1, 9, 2050)])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_in_one_look(device: torch.device, shape: tuple[int, ...], centred: bool, mean: float) -> None:
    x, dy = inputs_and_gradients(device, *shape, mean=mean)
    assert normed.takes(x, dy)
    found = normed.scale_and_shift(x, dy, 1e-5, centred)
    for a, b in zip(found, written_out(x, dy, 1e-5, centred), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3 if mean else 2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(device: torch.device, dtype: torch.dtype) -> None:
    x, dy = inputs_and_gradients(device, 3, 4, 36, dtype=dtype)
    found = normed.scale_and_shift(x, dy, 1e-5, True)
    for a, b in zip(found, written_out(x, dy, 1e-5, True), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


def test_what_it_does_not_take(device: torch.device) -> None:
    x, dy = inputs_and_gradients(device, 3, 4, 6)
    assert not normed.takes(x.double(), dy.double())
    assert not normed.takes(x[..., ::2], dy[..., ::2])
    assert not normed.takes(x[:0], dy[:0])
    assert not normed.takes(*inputs_and_gradients(device, 1, 1, normed.LARGEST + 1))


@pytest.mark.parametrize(("module", "layer"), [("normed", nn.LayerNorm(6)), ("moments", nn.BatchNorm2d(4))])
def test_a_kernel_that_does_not_run_costs_nothing_but_time(
    device: torch.device, module: str, layer: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(trial, "refused", {})
    x, dy = (
        inputs_and_gradients(device, 3, 4, 5, 6)
        if module == "moments"
        else inputs_and_gradients(device, 3, 4, 6)
    )
    call = Call(layer.to(device), (x,), {}, (dy,), 3, (Layout(),))
    formula = batch_norm if module == "moments" else layer_norm
    expected = formula(call)
    monkeypatch.setattr(
        importlib.import_module(f"cockpit.engine.kernels.{module}"), "scale_and_shift", refuse
    )
    for name, part in formula(call).items():
        torch.testing.assert_close(part.dense(0, 3), expected[name].dense(0, 3), rtol=1e-4, atol=1e-5)
    assert trial.refused == {module: "RuntimeError: no such instruction"}
