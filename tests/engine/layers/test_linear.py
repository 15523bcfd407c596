from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from cockpit.engine.gradients import individual
from cockpit.engine.layers.formula import Call, Layout, formula_for
from layer_check import check, filled, normal


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.Linear, NonDynamicallyQuantizableLinear])
def test_linear(kind: type[nn.Module], bias: bool) -> None:
    module = filled(kind(5, 3, bias=bias))
    check(module, normal(4, 5), n=4)
    check(module, normal(4, 2, 3, 5), n=4, again=(normal(4, 5, seed=1),), keep=[3, 1])


@pytest.mark.parametrize(
    ("shape", "pick", "n"), [((3, 4, 5), 0, 4), ((8, 5), 0, 4), ((8, 5), 1, 4), ((5,), 0, 1), ((3, 5), 0, 1)]
)
def test_linear_with_examples_anywhere(shape: tuple[int, ...], pick: int, n: int) -> None:
    check(filled(nn.Linear(5, 3)), normal(*shape), n=n, pick=pick)


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear(bias: bool) -> None:
    module = filled(nn.Bilinear(3, 2, 4, bias=bias))
    check(module, normal(4, 3), normal(4, 2, seed=1), n=4)
    check(module, normal(4, 5, 3), input2=normal(4, 5, 2, seed=1), n=4, keep=[2, 0])
    check(module, normal(4, 3), normal(4, 2, seed=1), n=4, again=(normal(4, 3, seed=2), normal(4, 2, seed=3)))
    check(module, normal(3), normal(2, seed=1), n=1)


def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(individual, "BLOCK", 30)
    check(filled(nn.Linear(5, 3)), normal(4, 2, 5), n=4)
    check(filled(nn.Linear(20, 30)), normal(4, 2, 20), n=4)  # squared by inner products between uses
    check(filled(nn.Bilinear(3, 2, 4)), normal(4, 2, 3), normal(4, 2, 2, seed=1), n=4)


def test_parameters_that_are_frozen_are_left_out() -> None:
    module = filled(nn.Linear(5, 3))
    module.weight.requires_grad_(False)
    check(module, normal(4, 5), n=4)


def test_half_precision_inputs_with_single_precision_gradients() -> None:
    module = nn.Linear(5, 3)
    x = normal(4, 5).to(torch.bfloat16)
    f = formula_for(module)
    assert f is not None
    part = f.parts(Call(module, (x,), {}, (normal(4, 3).float(),), 4, (Layout(),)))["weight"]
    assert part.dense(0, 4).dtype == torch.float32
