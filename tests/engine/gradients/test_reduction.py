"""One walk through written-out gradients serves every statistic that needs one; the others never cause it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.gradients import individual
from cockpit.engine.gradients.histograms import Histogram1d, Histogram2d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense, Outer, Part, Rows
from cockpit.engine.gradients.reduction import reductions
from cockpit.engine.statistics import (
    AbsMax,
    Direction,
    Norm2,
    Projection,
    Quantiles,
    SquareSum,
    Statistic,
    Total,
)
from layer_check import normal

SHAPE = torch.Size((6, 4))
N = 5
MEAN, LAST = Projection(Direction.MEAN), Projection(Direction.LAST_UPDATE)
DIRECTIONS = {MEAN: (normal(*SHAPE, seed=21), 0.5), LAST: (normal(*SHAPE, seed=22), torch.tensor(-2.0))}
HISTOGRAM = Histogram1d(7, -1, 1)
WALKING: list[Statistic] = [AbsMax(), HISTOGRAM, Histogram2d((3, 4), (-1, 1), (-1, 1)), Norm2(), SquareSum()]


def part(kind: str) -> Part:
    match kind:
        case "one use":
            return Outer(normal(N, 1, 1, 4), normal(N, 1, 1, 6, seed=1), SHAPE)
        case "many uses":
            return Outer(normal(N, 1, 9, 4, seed=2), normal(N, 1, 9, 6, seed=3), SHAPE)
        case "written out":
            return Dense(normal(N, *SHAPE, seed=4))
        case _:
            ids = torch.randint(6, (N, 3), generator=torch.Generator().manual_seed(5))
            return Rows(ids, normal(N, 3, 4, seed=6), SHAPE)


KINDS = ["one use", "many uses", "written out", "a table"]


def example_gradients(kind: str, fast: bool = True) -> ExampleGradients:
    return ExampleGradients("w", 0.4 * normal(*SHAPE, seed=7), (part(kind),), fast)


def found(g: ExampleGradients, statistics: list[Statistic]) -> dict[Statistic, Tensor]:
    pairs = list(reductions(g, statistics, DIRECTIONS))
    assert sorted(map(repr, dict(pairs))) == sorted(map(repr, statistics)), "each is yielded"
    assert len(pairs) == len(statistics), "and only once"
    return dict(pairs)


def expected(g: ExampleGradients, statistic: Statistic) -> Tensor:
    if isinstance(statistic, Projection):
        vector, factor = DIRECTIONS[statistic]
        return torch.tensordot(part_of(g), vector, 2) * factor
    return statistic.reduce(ExampleGradients("w", g.parameter, (Dense(part_of(g)),), fast=False))


def part_of(g: ExampleGradients) -> Tensor:
    return g.dense(0, N)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The spans of examples that were written out."""
    seen: list[tuple[int, int]] = []
    dense = ExampleGradients.dense

    def counted(self: ExampleGradients, start: int, stop: int) -> Tensor:
        seen.append((start, stop))
        return dense(self, start, stop)

    monkeypatch.setattr(ExampleGradients, "dense", counted)
    return seen


@pytest.mark.parametrize("block", [2**24, 50, 1], ids=lambda b: f"block {b}")
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_statistic_is_its_definition(
    kind: str, fast: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = example_gradients(kind, fast)
    statistics = [*WALKING, Total(), MEAN, LAST]
    wanted = {s: expected(g, s) for s in statistics}
    monkeypatch.setattr(individual, "BLOCK", block)
    monkeypatch.setattr(individual, "CACHED", min(block, 60))
    for statistic, value in found(g, statistics).items():
        want = wanted[statistic]
        assert value.shape == want.shape, statistic
        if not want.is_floating_point():
            assert torch.equal(value, want), statistic
        torch.testing.assert_close(value, want, rtol=1e-12, atol=1e-12, msg=lambda m: f"{statistic}: {m}")


def test_all_share_one_walk(written: list[tuple[int, int]]) -> None:
    found(example_gradients("many uses"), [*WALKING, MEAN, LAST])
    assert written == [(0, N)]


def test_the_plain_way_walks_for_each(written: list[tuple[int, int]]) -> None:
    found(example_gradients("many uses", fast=False), [AbsMax(), HISTOGRAM, SquareSum()])
    assert written == [(0, N)] * 3


def test_nobody_walks_where_factors_are_enough(written: list[tuple[int, int]]) -> None:
    found(example_gradients("one use"), [Norm2(), SquareSum(), Total(), MEAN, LAST, HISTOGRAM])
    assert written == []


def test_who_has_a_cheaper_way_takes_it_even_if_another_walks(
    written: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for statistic in (Norm2, SquareSum):
        monkeypatch.setattr(statistic, "of_block", lambda self, block, g: asked.append(repr(self)))
    found(example_gradients("one use"), [AbsMax(), Norm2(), SquareSum()])
    assert written == [(0, N)]
    assert asked == []


def test_quantiles_see_all_elements_at_once(written: list[tuple[int, int]], monkeypatch) -> None:
    monkeypatch.setattr(individual, "CACHED", 1)
    g = example_gradients("written out")
    values = found(g, [Quantiles(0.1), AbsMax()])
    assert written == [(0, N)]
    flat = part_of(g).flatten().sort().values
    k = int(0.1 * flat.numel())
    torch.testing.assert_close(values[Quantiles(0.1)], torch.stack([-flat[k], flat[-1 - k]]))


def test_blocks_fit_into_the_cache_otherwise(written: list[tuple[int, int]], monkeypatch) -> None:
    monkeypatch.setattr(individual, "CACHED", 2 * SHAPE.numel())
    found(example_gradients("written out"), [AbsMax(), Norm2()])
    assert written == [(0, 2), (2, 4), (4, 5)]


def test_a_direction_of_another_type_is_taken_as_it_is() -> None:
    exact = example_gradients("a table")
    g = ExampleGradients("w", exact.parameter.float(), (Dense(part_of(exact).float()),))
    values = dict(reductions(g, [AbsMax(), LAST], DIRECTIONS))
    torch.testing.assert_close(values[LAST].double(), expected(exact, LAST), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_statistics_ask_nothing(kind: str, written: list[tuple[int, int]]) -> None:
    assert list(reductions(example_gradients(kind), [], {})) == []
    assert written == []
