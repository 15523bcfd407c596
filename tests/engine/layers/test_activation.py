from __future__ import annotations

import pytest
from torch import nn

from layer_check import check, filled, normal


@pytest.mark.parametrize("slopes", [1, 3])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 5)])
def test_prelu(shape: tuple[int, ...], slopes: int) -> None:
    module = filled(nn.PReLU(slopes))
    check(module, normal(*shape), n=4)
    check(module, normal(*shape), n=4, again=(normal(*shape, seed=1),), keep=[3, 1])
    for pick in (0, 1):
        check(module, normal(8, *shape[1:]), n=4, pick=pick)


@pytest.mark.parametrize("shape", [(4,), (5, 4, 3)])
def test_one_slope_with_examples_anywhere(shape: tuple[int, ...]) -> None:
    check(filled(nn.PReLU()), normal(*shape), n=4)


def test_a_call_without_batch_axis() -> None:
    check(filled(nn.PReLU()), normal(5), n=1)
