"""Weights of examples, read once."""

from __future__ import annotations

import math

import pytest
import torch

from cockpit.engine.seeing.weights import Weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_weight_for_all(dtype: torch.dtype) -> None:
    weights = Weights.read(torch.full((6,), 0.1, dtype=dtype))
    assert weights.common == float(torch.tensor(0.1, dtype=dtype))
    assert weights.counted == 6
    assert weights.keep is None


def test_weights_that_differ() -> None:
    values = torch.tensor([1.0, 0.0, 2.0, 0.0], requires_grad=True)
    weights = Weights.read(values)
    assert weights.common is None
    assert weights.counted == 2
    assert weights.keep is not None
    assert weights.keep.tolist() == [0, 2]
    assert not weights.values.requires_grad


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_a_weight_that_nothing_can_be_divided_by(value: float) -> None:
    weights = Weights.read(torch.full((3,), value))
    assert weights.common is None
    assert weights.counted == (0 if value == 0 else 3)
