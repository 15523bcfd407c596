"""What follows from a recorded step by the learning rates, and by the factors of the step before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cockpit.engine.answers.scaling import LAST, MEAN, UPDATE, Scaling, scale
from cockpit.engine.answers.table import Table
from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from layer_check import normal

NAMES = ("a", "b", "c")
SLOPES, LENGTHS = normal(3, 5).numpy(), normal(3, seed=1).square().numpy()
GRADIENTS, UPDATES = Length(Known.GRADIENTS), Length(Known.UPDATES)
RATES = {"a": 0.1, "b": 0.5}


def table(**settled: np.ndarray) -> Table:
    found = Table({name: normal(2) for name in NAMES})
    which = {"mean": MEAN, "last": LAST, "gradients": GRADIENTS}
    for key, values in settled.items():
        found.settle(which[key], NAMES, values.copy())
    return found


def test_slopes_and_lengths_of_a_plain_step() -> None:
    t = table(mean=SLOPES, gradients=LENGTHS)
    Scaling(RATES).apply(t)
    names, slopes = t.stacked(UPDATE)
    assert names == NAMES
    np.testing.assert_allclose(slopes, SLOPES * np.array([-0.1, -0.5, 0.0])[:, None], rtol=1e-15)
    names, lengths = t.stacked(UPDATES)
    assert names == NAMES
    np.testing.assert_allclose(lengths, LENGTHS * np.array([0.01, 0.25, 0.0]), rtol=1e-15)


def test_what_it_follows_from_stays() -> None:
    t = table(mean=SLOPES, gradients=LENGTHS)
    Scaling(RATES).apply(t)
    assert np.array_equal(t.stacked(MEAN)[1], SLOPES)
    assert np.array_equal(t.stacked(GRADIENTS)[1], LENGTHS)


def test_slopes_along_the_step_before() -> None:
    t = table(last=SLOPES)
    Scaling(None, {"a": -2.0, "b": 1.0, "c": 0.5}).apply(t)
    np.testing.assert_allclose(t.stacked(LAST)[1], SLOPES * np.array([-2.0, 1.0, 0.5])[:, None], rtol=1e-15)


def test_who_did_not_move_before_has_no_slope() -> None:
    t = table(last=SLOPES)
    Scaling(None, {"a": 1.0, "b": 1.0}).apply(t)
    assert not t.stacked(LAST)[1][2].any()


def test_without_rates_nothing_is_said_of_the_step() -> None:
    t = table(mean=SLOPES, gradients=LENGTHS)
    Scaling(None, {}).apply(t)
    assert not t.has(UPDATE)
    assert not t.has(UPDATES)


@pytest.mark.parametrize("rates", [None, RATES])
def test_nothing_to_scale(rates: dict[str, float] | None) -> None:
    t = table()
    Scaling(rates).apply(t)
    assert not any(t.has(s) for s in (LAST, MEAN, UPDATE, GRADIENTS, UPDATES))


def test_tables_that_hold_tensors() -> None:
    t = table()
    t.enter(MEAN, {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}, everywhere=True)
    Scaling(RATES).apply(t)
    np.testing.assert_allclose(t.stacked(UPDATE)[1], [[-0.1, -0.2], [-1.5, -2.0]], rtol=1e-15)


def test_each_step_of_a_stretch_has_its_own_factors() -> None:
    steps = [Scaling({"a": 0.1 * k, "b": 0.5}, {"a": -2.0, "c": float(k)}) for k in range(4)]
    singles = []
    for k, step in enumerate(steps):
        singles.append(table(mean=SLOPES + k, last=SLOPES - k, gradients=LENGTHS * k))
        step.apply(singles[-1])
    ks = np.arange(4.0)[:, None]
    stretch = table(mean=SLOPES + ks[..., None], last=SLOPES - ks[..., None], gradients=LENGTHS * ks)
    scale(stretch, steps)
    for k, single in enumerate(singles):
        for statistic in (UPDATE, LAST, UPDATES):
            assert np.array_equal(stretch.stacked(statistic)[1][k], single.stacked(statistic)[1])
