"""Squares of one column's gradients of a convolution, by the kernel that multiplies without patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine import kernels
from cockpit.engine.curvature.column_sums import Columns, column_sum
from cockpit.engine.layers import conv
from cockpit.engine.layers.formula import Layout, formula_for
from cockpit.engine.seeing.use import Use
from engine.kernels.factors import inputs_and_gradients


def written_out(layer: nn.Conv2d, x: Tensor, dy: Tensor) -> Tensor:
    rows = [
        torch.nn.grad.conv2d_weight(a.double(), layer.weight.shape, b.double(), layer.stride, layer.padding)
        for a, b in zip(x.split(1), dy.split(1), strict=True)
    ]
    return torch.stack(rows).square().sum(0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("rough", [False, True])
def test_squares_of_columns(
    device: torch.device, rough: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    look = kernels.product_statistics

    def seen(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return look(*args, **more)

    monkeypatch.setattr(kernels, "product_statistics", seen)
    monkeypatch.setattr(conv, "rounds", lambda backend: rough)
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1).to(device)
    x, _ = inputs_and_gradients(device, 4, 3, 7, 6)
    out = layer(x)
    grads = torch.stack([inputs_and_gradients(device, *out.shape, mean=0.1 * k)[1] for k in range(count)])
    formula = formula_for(layer)
    assert formula is not None
    use = Use("layer", layer, formula, (x,), {}, [out], frozenset())
    columns = Columns(use, (grads,), 4, (Layout(),))
    names = {id(layer.weight): "weight", id(layer.bias): "bias"}
    found = column_sum("weight", layer.weight, [columns], names)
    assert found is not None
    expected = sum((written_out(layer, x, dy) for dy in grads), torch.zeros((), device=device))
    torch.testing.assert_close(
        found.double(), expected, rtol=5e-3 if rough else 1e-5, atol=1e-3 if rough else 1e-5
    )
    assert len(calls) == (count == 1), "several columns share their patches"
