"""Histograms of individual gradients: from factors, written out, in blocks, and jointly with the parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.gradients import individual
from cockpit.engine.gradients.histograms import Histogram, Histogram1d, Histogram2d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Outer
from cockpit.engine.numbers.binning import EXTRA
from layer_check import normal

SHAPE = torch.Size((3, 4))
ONE, TWO = Histogram1d(9, -1.0, 0.75), Histogram2d((5, 4), (-1.0, 0.75), (-0.5, 0.25))


def outer(uses: int = 1, groups: int = 1, dtype: torch.dtype = torch.float64) -> Outer:
    a, b = normal(7, groups, uses, 4), normal(7, groups, uses, 3 // groups, seed=1)
    return Outer(a.to(dtype), b.to(dtype), SHAPE)


def of(part: Outer | Dense, fast: bool = True, parameter: Tensor | None = None) -> ExampleGradients:
    theta = 0.4 * normal(3, 4, seed=2) if parameter is None else parameter
    return ExampleGradients("w", theta, (part,), fast)


@pytest.mark.parametrize("statistic", [ONE, TWO], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("uses", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ways_count_the_same(statistic: Histogram, uses: int, dtype: torch.dtype) -> None:
    part = outer(uses, dtype=dtype)
    # One use is an exact product: written out, factors and kernels give the same bits.
    written = Dense(part.b[:, 0, 0, :, None] * part.a[:, 0, 0, None, :]) if uses == 1 else None
    ways = [of(part), of(part, fast=False)] + ([of(written), of(written, fast=False)] if written else [])
    counts = [statistic.reduce(g) for g in ways]
    assert all(torch.equal(c, counts[0]) for c in counts)
    assert int(counts[0].sum()) == 7 * SHAPE.numel()


def test_one_use_is_counted_without_writing_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExampleGradients, "dense", lambda *_: pytest.fail("written out"))
    for statistic in (ONE, TWO):
        assert not statistic.walks(of(outer()))
        assert int(statistic.reduce(of(outer())).sum()) == 7 * SHAPE.numel()


@pytest.mark.parametrize(
    "part", [outer(2), outer(1, 3), Dense(normal(7, 3, 4))], ids=["uses", "groups", "dense"]
)
def test_everything_else_is_walked(part: Outer | Dense) -> None:
    assert ONE.walks(of(part))


@pytest.mark.parametrize("statistic", [ONE, TWO], ids=lambda s: type(s).__name__)
def test_blocks_join(statistic: Histogram, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statistic.reduce(of(outer(3)))
    monkeypatch.setattr(individual, "BLOCK", 24)
    assert torch.equal(statistic.reduce(of(outer(3))), whole)


@pytest.mark.parametrize("fast", [True, False])
def test_joint_counts_by_numpy(fast: bool) -> None:
    g = of(outer(2), fast)
    G, theta = g.dense(0, 7).flatten(1).numpy(), g.parameter.flatten().numpy()
    found = TWO.reduce(g)
    table, outside = found[:-EXTRA].view(5, 4).numpy(), found[-EXTRA:].tolist()
    t = np.tile(np.clip(theta, -0.5, 0.25), len(G))
    inside = (G.ravel() >= -1.0) & (G.ravel() <= 0.75)
    expected, _, _ = np.histogram2d(G.ravel()[inside], t[inside], (5, 4), ((-1.0, 0.75), (-0.5, 0.25)))
    assert np.array_equal(table, expected)
    assert outside == [(G < -1.0).sum(), (G > 0.75).sum(), 0, 0]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("uses", [1, 2])
def test_parameters_outside_go_to_the_outer_columns_and_nan_to_none(uses: int, fast: bool) -> None:
    theta = torch.zeros(SHAPE, dtype=torch.float64)
    theta.view(-1)[:6] = torch.tensor([-9.0, 9.0, torch.inf, -torch.inf, torch.nan, 0.25])
    g = of(outer(uses), fast, theta)
    columns = TWO.columns(g)
    assert columns.dtype == torch.int32
    assert columns.tolist() == [0, 3, 3, 0, -1, 3] + [2] * 6
    wide = Histogram2d((1, 4), (-99.0, 99.0), (-0.5, 0.25)).reduce(g)
    assert wide[:-EXTRA].tolist() == [7 * 2, 0, 7 * 6, 7 * 3]
    assert wide[-EXTRA:].tolist() == [0, 0, 7, 0]


def test_a_parameter_of_half_precision() -> None:
    g = of(outer(dtype=torch.float32), parameter=(0.4 * normal(3, 4, seed=2)).to(torch.bfloat16))
    assert int(TWO.reduce(g).sum()) == 7 * SHAPE.numel()


@pytest.mark.parametrize("statistic", [ONE, TWO], ids=lambda s: type(s).__name__)
def test_no_examples(statistic: Histogram) -> None:
    part = Outer(torch.zeros(0, 1, 1, 4), torch.zeros(0, 1, 1, 3), SHAPE)
    for fast in (True, False):
        assert not statistic.reduce(of(part, fast)).any()


def test_grids() -> None:
    assert (ONE.grid.bins, ONE.grid.low, ONE.grid.high, ONE.grid.columns) == (9, -1.0, 0.75, 1)
    assert (TWO.grid.bins, TWO.grid.low, TWO.grid.high, TWO.grid.columns) == (5, -1.0, 0.75, 4)
    assert ONE.columns(of(outer())) is None
