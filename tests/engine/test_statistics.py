"""Every statistic against autograd and numpy, its two joins, and bins to the last value on an edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cockpit.engine.gradients import individual
from cockpit.engine.gradients.histograms import Histogram1d, Histogram2d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Outer, Part
from cockpit.engine.numbers.binning import EXTRA, bin_index, edges
from cockpit.engine.statistics import (
    AbsMax,
    Direction,
    Join,
    Norm2,
    Projection,
    Quantiles,
    SquareSum,
    Statistic,
    Total,
)
from layer_check import normal

CPU = torch.device("cpu")
GRADIENT, PARAMETER = (-1.0, 0.75), (-0.5, 0.25)
"""Ranges that leave something outside on all sides."""


def example_gradients(start: int = 0, stop: int = 7) -> ExampleGradients:
    """A linear layer's weight [3, 4] after some examples of a batch of seven."""
    a, b = normal(7, 1, 1, 4)[start:stop], normal(7, 1, 1, 3, seed=1)[start:stop]
    return ExampleGradients("w", 0.4 * normal(3, 4, seed=2), (Outer(a, b, torch.Size((3, 4))),))


def by_autograd() -> Tensor:
    """The same gradients [N, 3, 4] from one backward pass after the other."""
    weight = (0.4 * normal(3, 4, seed=2)).requires_grad_()
    x, back = normal(7, 4), normal(7, 3, seed=1)
    losses = (nn.functional.linear(x, weight) * back).sum(1)
    return torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])


def counted(values: np.ndarray, bins: int, reach: tuple[float, float]) -> np.ndarray:
    inside = values[(values >= reach[0]) & (values <= reach[1])]
    outside = [(values < reach[0]).sum(), (values > reach[1]).sum(), 0, 0]
    return np.concatenate([np.histogram(inside, bins, reach)[0], outside])


def expected(statistic: Statistic, G: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """The definition, on written-out gradients [N, 3, 4]."""
    flat = G.reshape(len(G), -1)
    match statistic:
        case Norm2():
            return (flat**2).sum(1)
        case Total():
            return G.sum(0)
        case SquareSum():
            return (G**2).sum(0)
        case Projection():
            return flat @ flat.mean(0)
        case AbsMax():
            return np.abs(G).max()
        case Quantiles(share):
            ordered = np.sort(G.ravel())
            k = int(share * G.size)
            return np.array([-ordered[k], ordered[-1 - k]])
        case Histogram1d(bins, low, high):
            return counted(G.ravel(), bins, (low, high))
        case Histogram2d((rows, columns), gradient, parameter):
            g, t = flat.ravel(), np.tile(np.clip(theta.ravel(), *parameter), len(flat))
            keep = (g >= gradient[0]) & (g <= gradient[1])
            inside, _, _ = np.histogram2d(g[keep], t[keep], (rows, columns), (gradient, parameter))
            outside = [(g < gradient[0]).sum(), (g > gradient[1]).sum(), 0, 0]
            return np.concatenate([inside.ravel(), outside])
    raise NotImplementedError(statistic)


ALL: list[Statistic] = [
    Norm2(),
    Total(),
    SquareSum(),
    Projection(Direction.MEAN),
    AbsMax(),
    Quantiles(0.1),
    Histogram1d(9, *GRADIENT),
    Histogram2d((5, 4), GRADIENT, PARAMETER),
]


@pytest.mark.parametrize("statistic", ALL, ids=lambda s: type(s).__name__)
def test_statistic_is_its_definition(statistic: Statistic) -> None:
    g = example_gradients()
    wanted = expected(statistic, by_autograd().numpy(), g.parameter.numpy())
    assert wanted.size, "nothing to compare"
    np.testing.assert_allclose(statistic.reduce(g).numpy(), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "statistic", [s for s in ALL if not isinstance(s, Projection)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("cut", [1, 4])
def test_examples_may_be_split_and_joined(statistic: Statistic, cut: int) -> None:
    pieces = [statistic.reduce(example_gradients(i, j)) for i, j in ((0, cut), (cut, 7))]
    whole = statistic.reduce(example_gradients())
    if isinstance(statistic, Quantiles):  # the join is a bound: as wide as the wider half
        assert bool((torch.stack(pieces).amax(0) >= whole - 1e-12).all())
        return
    joined = {
        Join.CAT: lambda: torch.cat(pieces),
        Join.SUM: lambda: torch.stack(pieces).sum(0),
        Join.MAX: lambda: torch.stack(pieces).amax(0),
    }[statistic.over_examples]()
    torch.testing.assert_close(joined, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "statistic", [s for s in ALL if s.over_parameters is not Join.NEVER], ids=lambda s: type(s).__name__
)
def test_parameters_may_be_split_and_joined(statistic: Statistic) -> None:
    """Two parameters' statistics join to that of their concatenation."""
    G, theta = normal(6, 5), 0.3 * normal(5, seed=3)

    def of(columns: slice) -> Tensor:
        return statistic.reduce(ExampleGradients("p", theta[columns], (Dense(G[:, columns]),)))

    pieces, whole = torch.stack([of(slice(0, 2)), of(slice(2, 5))]), of(slice(0, 5))
    if isinstance(statistic, Quantiles):
        assert bool((pieces.amax(0) >= whole - 1e-12).all())
        return
    joined = pieces.sum(0) if statistic.over_parameters is Join.SUM else pieces.amax(0)
    torch.testing.assert_close(joined, whole, rtol=1e-12, atol=1e-13)


def test_what_never_joins_over_parameters_has_their_shape() -> None:
    g = example_gradients()
    shaped = [s for s in ALL if s.over_parameters is Join.NEVER]
    assert [type(s) for s in shaped] == [Total, SquareSum]
    assert all(s.reduce(g).shape == g.parameter.shape for s in shaped)


@pytest.mark.parametrize("statistic", ALL, ids=lambda s: type(s).__name__)
def test_blocks_do_not_change_a_statistic(statistic: Statistic, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statistic.reduce(example_gradients())
    monkeypatch.setattr(individual, "BLOCK", 24)  # two examples at a time
    found = statistic.reduce(example_gradients())
    if isinstance(statistic, Quantiles):
        assert bool((found >= whole - 1e-12).all())
    else:
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-13)


def test_equal_requests_are_one() -> None:
    assert len({Norm2(), Norm2(), Histogram1d(3, 0.0, 1.0), Histogram1d(3, 0.0, 1.0)}) == 2
    assert Projection(Direction.MEAN) != Projection(Direction.UPDATE)


@pytest.mark.parametrize("statistic", ALL, ids=lambda s: type(s).__name__)
def test_no_examples_at_all(statistic: Statistic) -> None:
    found = statistic.reduce(ExampleGradients("w", normal(2, 3), (Dense(normal(0, 2, 3)),)))
    assert float(found.sum()) == 0 or isinstance(statistic, Projection)


# -- bins ------------------------------------------------------------------------------------------------

RANGES = [(-2.0, 2.0), (-1.0, 1.0), (0.0, 1.0), (-0.3, 0.1), (-1e-6, 1e-6), (-1e4, 3e4), (1.0, 1.5)]
reaches = st.sampled_from(RANGES)
dtypes = st.sampled_from([torch.float32, torch.float64])
anything = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.floats(-3, 3, width=32),
    st.floats(-1e-6, 1e-6),
)


def near_edges(edge: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers next to every edge, and the edges themselves where the dtype has them."""
    edge = edge.to(dtype)
    up, down = torch.full_like(edge, torch.inf), torch.full_like(edge, -torch.inf)
    return torch.cat([edge, torch.nextafter(edge, up), torch.nextafter(edge, down)])


def numpy_counts(x: np.ndarray, edge: np.ndarray) -> np.ndarray:
    finite = x[np.isfinite(x)]
    inside = np.histogram(finite[(finite >= edge[0]) & (finite <= edge[-1])], edge)[0]
    below, above = (finite < edge[0]).sum(), (finite > edge[-1]).sum()
    return np.concatenate([inside, [below, above, np.isnan(x).sum(), np.isinf(x).sum()]])


@settings(max_examples=150, deadline=None)
@given(st.lists(anything, max_size=30), st.integers(1, 130), reaches, dtypes)
def test_bins_are_those_of_numpy(
    values: list[float], bins: int, reach: tuple[float, float], dtype: torch.dtype
) -> None:
    edge = edges(bins, *reach, CPU)
    x = torch.cat([torch.tensor(values, dtype=torch.float64).to(dtype), near_edges(edge, dtype)])
    wanted = numpy_counts(x.double().numpy(), edge.numpy()).tolist()
    assert torch.bincount(bin_index(x.double(), edge), minlength=bins + EXTRA).tolist() == wanted
    g = ExampleGradients("p", torch.zeros(1, dtype=dtype), (Dense(x[:, None]),))
    assert Histogram1d(bins, *reach).reduce(g).tolist() == wanted


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(1, 12), reaches, reaches, dtypes)
def test_joint_bins_are_those_of_numpy(
    data: st.DataObject,
    rows: int,
    columns: int,
    gradient: tuple[float, float],
    parameter: tuple[float, float],
    dtype: torch.dtype,
) -> None:
    """Gradients outside are counted apart, parameters outside fall into their outer bins."""
    y, x = edges(rows, *gradient, CPU), edges(columns, *parameter, CPU)
    size = 6
    finite = st.floats(-4, 4, width=32)
    theta = torch.cat(
        [torch.tensor(data.draw(st.lists(finite, min_size=4, max_size=4))).to(dtype), x[:2].to(dtype)]
    )
    picked = data.draw(st.lists(st.one_of(finite, st.sampled_from(y.tolist())), min_size=18, max_size=18))
    G = torch.tensor(picked, dtype=torch.float64).to(dtype).reshape(3, size)
    part: Part = Dense(G)
    found = Histogram2d((rows, columns), gradient, parameter).reduce(ExampleGradients("p", theta, (part,)))
    g = G.double().numpy().ravel()
    t = np.tile(np.clip(theta.double().numpy(), x[0].numpy(), x[-1].numpy()), 3)
    keep = (g >= y[0].numpy()) & (g <= y[-1].numpy())
    wanted, _, _ = np.histogram2d(g[keep], t[keep], (y.numpy(), x.numpy()))
    assert found[: rows * columns].tolist() == wanted.ravel().tolist()
    assert found[rows * columns :].tolist() == [(g < y[0].numpy()).sum(), (g > y[-1].numpy()).sum(), 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_none_are_counted_apart(dtype: torch.dtype) -> None:
    G = torch.tensor([[0.1, torch.nan], [torch.inf, -torch.inf], [-9.0, 9.0]], dtype=dtype)
    g = ExampleGradients("p", torch.tensor([0.2, 0.3], dtype=dtype), (Dense(G),))
    assert Histogram1d(2, -1, 1).reduce(g).tolist() == [0, 1, 1, 1, 1, 2]
    assert Histogram2d((2, 1), (-1, 1), (-1, 1)).reduce(g).tolist() == [0, 1, 1, 1, 1, 2]
    assert float(AbsMax().reduce(g)) == 9
    assert Quantiles(0.0).reduce(g).tolist() == [9, 9]
    nothing = ExampleGradients("p", g.parameter, (Dense(torch.full((3, 2), torch.nan, dtype=dtype)),))
    assert float(AbsMax().reduce(nothing)) == 0
    assert Quantiles(0.1).reduce(nothing).tolist() == [0, 0]


def test_parameters_that_are_no_numbers_are_counted_apart() -> None:
    theta = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0], dtype=torch.float64)
    g = ExampleGradients("p", theta, (Dense(torch.zeros(5, 4, dtype=torch.float64)),))
    counts = Histogram2d((1, 3), (-1, 1), (-1, 1)).reduce(g)
    assert counts.tolist() == [5, 5, 5, 0, 0, 5, 0]


def test_forty_million_zeros_are_counted() -> None:
    """More than float32 can count (2²⁴); nothing of that size is formed at once."""
    g = ExampleGradients("p", torch.zeros(1), (Dense(torch.zeros(1, 1).expand(40_000_000, 1)),))
    counts = Histogram1d(4, -1, 1).reduce(g)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [0, 0, 40_000_000, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("reach", RANGES)
def test_edges_are_evenly_spaced(reach: tuple[float, float]) -> None:
    found = edges(10, *reach, CPU)
    assert (float(found[0]), float(found[-1])) == reach
    np.testing.assert_allclose(
        found.numpy(), np.linspace(*reach, 11), rtol=0, atol=1e-15 * max(map(abs, reach))
    )
