"""Steps told together have the numbers they have one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.requests import GRADIENTS, LAST, MEAN, UPDATE, UPDATES
from cockpit.engine.answers.scaling import Scaling
from cockpit.engine.answers.stretch import Settled, alike
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Transfer, packed
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Norm2, Statistic, Total
from layer_check import normal

PARAMETERS = {"a": normal(2, 3), "b": normal(4, seed=1)}
COUNTS = Histogram1d(3, -1.0, 1.0)
STATISTICS: list[Statistic] = [Norm2(), COUNTS, GRADIENTS, MEAN, LAST]


def numbers(statistic: Statistic, name: str, seed: int, examples: int) -> Tensor:
    seed = 10 * seed + len(name) + ord(name)
    if statistic == COUNTS:
        return torch.randint(9, (7,), generator=torch.Generator().manual_seed(seed))
    return normal(*() if statistic == GRADIENTS else (examples,), seed=seed).square()


def observed(seed: int, examples: int = 5, names: tuple[str, ...] = ("a", "b"), **fields: Any) -> Observed:
    """Return a step whose numbers are under way."""
    table = Table(PARAMETERS)
    table.begin(examples, names, {})
    for statistic in STATISTICS:
        table.enter(statistic, {n: numbers(statistic, n, seed, examples) for n in names})
    found = Observed(examples, table, {Known.LOSSES: normal(examples, seed=seed)}, **fields)
    found.send()
    return found


def rates(seed: int) -> Scaling:
    return Scaling({"a": 0.1 * seed, "b": 0.2}, {"a": -1.0, "b": float(seed)})


@pytest.mark.parametrize("scaling", [None, rates], ids=["as they are", "scaled"])
def test_numbers_are_those_of_the_single_steps(scaling: Callable[[int], Scaling] | None) -> None:
    def made(seed: int) -> Observed:
        return observed(seed, scaling=None if scaling is None else scaling(seed))

    together = Settled([made(seed) for seed in range(4)])
    for k in range(4):
        alone = made(k)
        alone.settle()
        found = together.step(k)
        assert torch.equal(found.known[Known.LOSSES], alone.known[Known.LOSSES])
        for statistic in [*STATISTICS, *([UPDATE, UPDATES] if scaling else [])]:
            names, values = alone.table.stacked(statistic)
            assert together.table.stacked(statistic)[0] == names
            assert np.array_equal(together.table.stacked(statistic)[1][k], values)
            assert np.array_equal(found.table.stacked(statistic)[1], values)
            assert together.table.stacked(statistic)[1].dtype == values.dtype
        assert found.notes == alone.notes == ()
    assert together.table.has(UPDATE) == (scaling is not None)


def in_two_pieces(seed: int) -> Observed:
    """A step of which the numbers of one parameter came with others, before them in order."""
    found = Observed(5, Table(PARAMETERS), {})
    found.add([(Norm2(), ("b",))], Transfer(packed([normal(5, seed=seed)])))
    found.add(
        [(Norm2(), ("a",)), (MEAN, ("a",))], Transfer(packed([normal(5, seed=k) for k in (7, 8)])), True
    )
    return found


def test_numbers_of_further_parameters_come_in_their_order() -> None:
    assert alike(in_two_pieces(0), in_two_pieces(1))
    together = Settled([in_two_pieces(seed) for seed in range(3)])
    for k in range(3):
        alone = in_two_pieces(k)
        alone.settle()
        for statistic in (Norm2(), MEAN):
            names, values = alone.table.stacked(statistic)
            assert together.table.stacked(statistic)[0] == names
            assert np.array_equal(together.table.stacked(statistic)[1][k], values)
    assert together.table.stacked(Norm2())[0] == ("a", "b")


def test_a_part_has_the_numbers_of_its_steps() -> None:
    together = Settled([observed(seed) for seed in range(4)])
    part = together.part(slice(1, 3))
    for statistic in STATISTICS:
        assert np.array_equal(part.stacked(statistic)[1], together.table.stacked(statistic)[1][1:3])
    part.total_exists(Norm2())


def test_what_is_not_finite_is_noted_where_it_is() -> None:
    steps = [observed(seed) for seed in range(3)]
    bad = observed(7)
    bad.sent.clear()
    bad.known[Known.LOSSES][1] = torch.nan
    bad.send()
    assert alike(steps[0], bad)
    Settled([*steps, bad])
    assert [[kind for kind, _ in step.notes] for step in (*steps, bad)] == [[], [], [], ["nonfinite_loss"]]


def test_replayed_steps_keep_their_numbers_where_one_of_them_is_not_finite() -> None:
    def replayed(seed: int, length: float) -> Observed:
        found = Observed(5, Table(PARAMETERS), {Known.LOSSES: None})
        pack = packed([torch.tensor(length, dtype=torch.float64), normal(5, seed=seed)])
        found.add([(GRADIENTS, ("a",))], Transfer(pack))
        return found

    steps = [replayed(k, torch.nan if k == 2 else float(k)) for k in range(4)]
    for step in steps[1:]:
        step.share(steps[0].table, steps[0].known)
    together = Settled(steps)
    for k, step in enumerate(steps):
        assert np.array_equal(
            together.step(k).table.stacked(GRADIENTS)[1], [torch.nan if k == 2 else k], True
        )
        assert torch.equal(step.known[Known.LOSSES], normal(5, seed=k))
        assert [kind for kind, _ in step.notes] == (["nonfinite_gradient"] if k == 2 else [])


def test_steps_that_differ_are_not_alike() -> None:
    one = observed(0)
    assert alike(one, observed(1))
    assert not alike(one, observed(1, examples=4)), "another number of examples"
    assert not alike(one, observed(1, names=("a",))), "another parameter took part"
    assert not alike(one, observed(1, scaling=rates(1))), "one is scaled"
    void = observed(1)
    void.table.void(UPDATE, "clipped")
    assert not alike(one, void)
    gap = observed(1)
    gap.table.gap("b", "no formula")
    assert not alike(one, gap)
    twice = observed(1)
    twice.send()
    assert not alike(one, twice)
    more = observed(1)
    more.sent = [(layout, transfer, True) for layout, transfer, _ in more.sent]
    assert not alike(one, more)


def test_small_is_what_holds_no_vectors() -> None:
    assert observed(0).small
    heavy, large = observed(0), observed(0)
    heavy.known[Known.GRADIENTS] = PARAMETERS
    large.table.enter(Total(), PARAMETERS)
    assert not heavy.small
    assert not large.small
    floats = 2 * (5 + 1 + 5 + 5) + 5  # of both parameters, and the losses
    assert observed(0).size == 8 * (floats + 2 * 7)
