"""Numbers made from vectors of a parameter's size: each against its definition, and long sums in single precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.derived import (
    Derived,
    Length,
    MeanNorm2,
    Separation,
    SignalToNoise,
    Takeuchi,
    Trace,
)
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.needs import Diagonal, Known
from cockpit.engine.numbers import lengths
from cockpit.engine.statistics import Join, SquareSum, Total
from layer_check import normal

N = 6
G = normal(N, 4, 3)
TOTAL, SQUARES = G.sum(0), G.square().sum(0)
DIAGONAL = Diagonal("diag_h")


def test_squared_mean() -> None:
    found = MeanNorm2().derive(N, TOTAL)
    torch.testing.assert_close(found, G.mean(0).square().sum())
    assert MeanNorm2().sources == (Total(),)


@pytest.mark.parametrize("unbiased", [False, True])
def test_signal_to_noise(unbiased: bool) -> None:
    statistic = SignalToNoise(1e-3, unbiased)
    found = statistic.derive(N, SQUARES, TOTAL)
    expected = (G.mean(0).square() / (G.var(0, unbiased=unbiased) + 1e-3)).sum()
    torch.testing.assert_close(found, expected)
    assert statistic.sources == (SquareSum(), Total())


def test_examples_that_agree_have_no_noise_but_for_rounding() -> None:
    g = normal(1, 50).float().expand(7, -1)
    squares, total = g.square().sum(0), g.sum(0)
    found = float(SignalToNoise(1e-4, False).derive(7, squares, total))
    expected = float((g[0].double().square() / 1e-4).sum())
    assert found == pytest.approx(expected, rel=2e-2)


def test_a_variance_that_rounding_makes_negative_is_none() -> None:
    mean = normal(4)
    squares = 7 * (mean.square() - 0.01)
    found = SignalToNoise(1e-4, True).derive(7, squares, 7 * mean)
    torch.testing.assert_close(found, (mean.square() / 1e-4).sum())


@pytest.mark.parametrize("statistic", [SignalToNoise(1e-3, True), SignalToNoise(1e-3, False)])
def test_one_example_has_no_variance(statistic: SignalToNoise) -> None:
    found = statistic.derive(1, G[0].square(), G[0])
    torch.testing.assert_close(found, (G[0].square() / 1e-3).sum())


def test_trace() -> None:
    h = normal(4, 3, seed=2)
    torch.testing.assert_close(Trace(DIAGONAL).derive(N, h), h.sum())
    assert Trace(DIAGONAL).sources == (DIAGONAL,)


def test_traces_of_single_precision_are_summed_in_double() -> None:
    h = torch.full((3, 2**20), 0.1)
    found = Trace(DIAGONAL).derive(N, h)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(3 * 2**20 * float(h[0, 0]), rel=3e-7)  # a running sum is off by 1e-3


def test_takeuchi() -> None:
    h = normal(4, 3, seed=2)
    h[0, 0], h[1, 1], h[2, 2] = 0.0, 5e-4, -5e-4
    epsilon = 1e-4
    terms, weak = (SQUARES / N) / (h / N + epsilon), (h < 0) | (h.abs() / N < 10 * epsilon)
    found = Takeuchi(DIAGONAL, epsilon).derive(N, SQUARES, h)
    expected = torch.stack([terms.sum(), terms[weak].abs().sum(), (h < 0).sum().double()])
    torch.testing.assert_close(found, expected)
    assert Takeuchi(DIAGONAL, epsilon).sources == (SquareSum(), DIAGONAL)


@pytest.mark.parametrize(
    "statistic", [Trace(DIAGONAL), Takeuchi(DIAGONAL, 1e-2), SignalToNoise(1e-3, True), MeanNorm2()], ids=str
)
@pytest.mark.parametrize("group", [2**24, 20, 1])
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_parameters_together_equal_one_by_one(
    statistic: Derived, group: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "GROUP", group)
    size = len(statistic.sources)
    sources = [[normal(4, k + 1, seed=20 * j + k) for k in range(count)] for j in range(size)]
    expected = [statistic.derive(N, *each) for each in zip(*sources, strict=True)]
    torch.testing.assert_close(statistic.derive_all(N, *sources), expected, equal_nan=True)
    joint = list(statistic.joint(N, *sources)) if count else []
    torch.testing.assert_close(joint, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("statistic", "sources"),
    [
        (MeanNorm2(), (torch.zeros(2),)),
        (SignalToNoise(1e-5, True), (torch.zeros(2), torch.zeros(2))),
        (Trace(DIAGONAL), (torch.zeros(2),)),
        (Takeuchi(DIAGONAL, 1e-7), (torch.zeros(2), torch.zeros(2))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_no_examples_at_all_are_no_division_by_zero(statistic, sources: tuple[Tensor, ...]) -> None:
    found = statistic.derive(0, *sources)
    assert found.dtype == torch.float64
    assert not found.any()


def test_they_are_numbers_of_a_parameter_that_add_over_parameters() -> None:
    for statistic in (Length(Known.UPDATES), Separation({}), MeanNorm2(), Trace(DIAGONAL)):
        assert statistic.small
        assert statistic.over_parameters is Join.SUM
        with pytest.raises(NotImplementedError):
            statistic.reduce(ExampleGradients("w", G[0], (Dense(G),)))


def test_separations_are_the_same_where_their_origin_is() -> None:
    origin = {"w": normal(2)}
    assert Separation(origin) == Separation(origin)
    assert hash(Separation(origin)) == hash(Separation(origin))
    assert repr(Separation(origin)) == repr(Separation(origin))
    assert Separation(origin) != Separation({"w": normal(2)})
    assert len({Separation(origin), Separation(origin), Separation({})}) == 2


def test_equal_requests_are_one() -> None:
    assert len({Length(Known.UPDATES), Length(Known.UPDATES), Length(Known.GRADIENTS)}) == 2
    assert len({Takeuchi(DIAGONAL, 1e-7), Takeuchi(Diagonal("diag_h"), 1e-7), Takeuchi(DIAGONAL, 1e-6)}) == 2


# -- squared lengths -------------------------------------------------------------------------------------
