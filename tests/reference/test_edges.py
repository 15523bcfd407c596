"""The edges of the definitions, as the twins see them: one example, no step, no gradient, frozen parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isnan

import numpy as np
import pytest
import torch
from torch import nn

from cockpit.testing import problem
from reference.counts import total
from reference.twins import train


def sgd(rate: float = 0.1) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate)


def exactly(value: float, rel: float = 1e-10) -> object:
    return pytest.approx(value, rel=rel, abs=1e-14)


def test_one_example() -> None:
    twin = train(problem("mlp"), sgd(), [[1], [1], [4]])
    for name in ("norm_test", "inner_test", "ortho_test", "mean_gsnr", "cabs", "early_stopping"):
        assert isnan(twin.value(0, name))
        assert twin.status(0, name) == "batch_size_1"
    start, end = (twin.steps[t].joined().mean(0) for t in (0, 1))
    s = np.concatenate(
        [(twin.steps[1].parameters[k] - v).ravel() for k, v in twin.steps[0].parameters.items()]
    )
    assert twin.records[0, "alpha", ""] == (exactly(-(end @ s) / (start @ s)), "slopes_only")
    assert twin.status(1, "alpha") == "slopes_only"


def test_no_step_and_no_gradient() -> None:
    twin = train(problem("mlp"), sgd(0.0), [[4], [4]])
    assert twin.records[0, "alpha", ""] == (-1.0, "zero_step")
    assert twin.value(0, "update_size") == 0
    flat = replace(problem("mlp"), criterion=lambda f, y: 0 * f.sum(1) + 2)
    twin = train(flat, sgd(), [[4]])
    assert isnan(twin.value(0, "norm_test"))
    assert twin.status(0, "norm_test") == "zero_gradient"
    negative = replace(problem("mlp"), criterion=lambda f, y: f.sum(1) - 9)
    assert train(negative, sgd(), [[4]]).status(0, "cabs") == "loss_not_positive"


def test_frozen_and_unused_parameters() -> None:
    twin = train(problem("frozen"), sgd(), [[4]])
    assert twin.scopes(0, "grad_norm") == ["2.weight", "4.weight", "4.bias"]
    twin = train(problem("unused"), sgd(), [[4]])
    assert twin.value(0, "grad_norm", "idle.weight") == 0
    assert twin.scopes(0, "grad_hist1d") == ["used.weight", "used.bias"]
    assert total(twin.value(0, "grad_hist1d")) == 4 * 18


def test_optimizers_other_than_plain_sgd_and_several_rates() -> None:
    def two_rates(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": rest}], lr=0.1)

    twin = train(problem("mlp"), two_rates, [[5]])
    G, L = twin.steps[0].gradients, twin.value(0, "loss")
    spread = [g.var(0).sum() for g in G.values()]
    assert twin.records[0, "cabs", ""] == (exactly((0.5 * spread[0] + 0.1 * sum(spread[1:])) / L), "ok")
    adam = train(problem("mlp"), lambda m: torch.optim.Adam(m.parameters()), [[5]])
    assert adam.status(0, "cabs") == adam.status(0, "early_stopping") == "derived_for_sgd"


def test_clipping_changes_the_step_only() -> None:
    def clip(model: nn.Module) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    twin, free = (train(problem("mlp"), sgd(), [[5], [5]], before_step=f) for f in (clip, None))
    assert twin.value(0, "grad_norm") == free.value(0, "grad_norm")
    assert twin.value(0, "update_size") == exactly(0.001, 1e-3)
