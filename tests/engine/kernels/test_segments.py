"""Many small parameters side by side: what the kernel says of each is what is said of it alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine import kernels
from cockpit.engine.gradients.bunch import LARGEST, Bunch
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.kernels import trial
from cockpit.engine.numbers.binning import Grid
from cockpit.engine.statistics import Direction, Norm2, Projection, SquareSum, Statistic

GRID = Grid(20, -1.0, 1.0)
MEAN, LAST = Projection(Direction.MEAN), Projection(Direction.LAST_UPDATE)


def normal(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("directions", [0, 1, 3])
@pytest.mark.parametrize("sizes", [(1,), (3, 700, 5), (512, 513, 1)])
def test_each_segment_is_what_it_is_alone(
    device: torch.device, sizes: tuple[int, ...], directions: int
) -> None:
    block = normal(device, 6, sum(sizes))
    block[2, 0] = float("nan")
    vectors = [normal(device, sum(sizes), seed=1 + k) for k in range(directions)]
    norm2, dots, counts = kernels.segment_statistics(block, sizes, vectors, GRID)
    assert counts is not None
    begin = 0
    for k, size in enumerate(sizes):
        part, end = block[:, begin : begin + size], begin + size
        expected = kernels.block_statistics(part.contiguous(), [v[begin:end] for v in vectors], GRID)
        torch.testing.assert_close(norm2[k], expected[0], equal_nan=True, rtol=1e-6, atol=0)
        torch.testing.assert_close(dots[k], expected[1], equal_nan=True, rtol=1e-5, atol=1e-5)
        assert torch.equal(counts[k], expected[2])
        begin = end


def asked(device: torch.device, size: int, seed: int) -> ExampleGradients:
    parameter = nn.Parameter(normal(device, size, seed=seed))
    return ExampleGradients(f"p{seed}", parameter, (Dense(normal(device, 4, size, seed=seed)),))


def test_a_bunch_says_what_each_parameter_says(device: torch.device) -> None:
    bunch, members = Bunch(), [asked(device, size, size) for size in (3, 40, 7)]
    histogram = Histogram1d(20, -1.0, 1.0)
    statistics: list[Statistic] = [Norm2(), MEAN, LAST, histogram]
    directions = {}
    for k, g in enumerate(members):
        v = normal(device, g.parameter.numel(), seed=90 + k)
        directions[g.name] = {MEAN: (v, 0.25), LAST: (v, 1.0 + k)}
        assert bunch.takes(g, statistics, directions[g.name])
    found = {(name, statistic): value for name, statistic, value in bunch.reductions()}
    assert list(bunch.reductions()) == [], "nothing is left"
    assert len(found) == len(members) * len(statistics)
    for g in members:
        torch.testing.assert_close(found[g.name, Norm2()], g.norm2().double(), rtol=1e-5, atol=0)
        for s in (MEAN, LAST):
            vector, factor = directions[g.name][s]
            torch.testing.assert_close(
                found[g.name, s], (g.dot(vector) * factor).double(), rtol=1e-4, atol=1e-5
            )
        assert torch.equal(found[g.name, histogram], histogram.reduce(g))


def test_what_does_not_wait(device: torch.device) -> None:
    small, bunch = asked(device, 5, 1), Bunch()
    assert not bunch.takes(asked(device, LARGEST + 1, 1), [Norm2()], {})
    assert not bunch.takes(small, [Norm2(), SquareSum()], {})
    assert not bunch.takes(small, [], {})
    assert not bunch.takes(small, [MEAN], {MEAN: (small.parameter, torch.ones(()))})
    plain = ExampleGradients(small.name, small.parameter, small.parts, fast=False)
    assert not bunch.takes(plain, [Norm2()], {})
    double = ExampleGradients("d", small.parameter, (Dense(small.parts[0].dense(0, 4).double()),))
    assert not bunch.takes(double, [Norm2()], {})
    assert list(bunch.reductions()) == []


def test_a_kernel_that_does_not_run_costs_nothing_but_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(kernels, "segment_statistics", refuse)
    monkeypatch.setattr(trial, "refused", {})
    bunch, g = Bunch(), asked(device, 5, 1)
    assert bunch.takes(g, [Norm2()], {})
    ((name, statistic, value),) = bunch.reductions()
    assert (name, statistic) == (g.name, Norm2())
    torch.testing.assert_close(value.double(), g.norm2().double(), rtol=1e-5, atol=0)
    assert trial.refused == {"segments": "RuntimeError: no such instruction"}
    assert not bunch.takes(g, [Norm2()], {}), "it is not tried again"
