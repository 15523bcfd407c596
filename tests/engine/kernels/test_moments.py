"""The gradients of a BatchNorm in one look: those of the formula, written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.kernels import moments
from engine.kernels.factors import inputs_and_gradients


def written_out(x: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    xhat = F.batch_norm(x.double(), None, None, training=True, eps=eps)
    space = tuple(range(2, x.ndim))
    return (xhat * dy.double()).sum(space), dy.double().sum(space)


@pytest.mark.parametrize(
    "shape", [(3, 5, 2, 2), (2, 7, 7, 7), (4, 3, 40, 31), (1, 2, 9), (2, 3, 2, 3, 4), (2, 1, 1, 1)]
)
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_in_one_look(device: torch.device, shape: tuple[int, ...], mean: float) -> None:
    x, dy = inputs_and_gradients(device, *shape, mean=mean)
    assert moments.takes(x, dy)
    found, expected = moments.scale_and_shift(x, dy, 1e-5), written_out(x, dy, 1e-5)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4 if mean else 2e-5, atol=1e-3 if mean else 2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(device: torch.device, dtype: torch.dtype) -> None:
    x, dy = inputs_and_gradients(device, 3, 4, 6, 6, dtype=dtype)
    for a, b in zip(moments.scale_and_shift(x, dy, 1e-5), written_out(x, dy, 1e-5), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


def test_what_it_does_not_take(device: torch.device) -> None:
    x, dy = inputs_and_gradients(device, 3, 4, 6, 6)
    assert not moments.takes(x.double(), dy.double())
    assert not moments.takes(x.to(memory_format=torch.channels_last), dy)
    assert not moments.takes(x[:, :, 0, 0], dy[:, :, 0, 0])
    assert not moments.takes(x[:0], dy[:0])
