"""Joining a step's answers: micro-batches, pieces of them, parameters that take part now and then, gaps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.engine.answers.table import Table
from cockpit.engine.derived import Length, MeanNorm2, Trace
from cockpit.engine.gradients.histograms import Histogram1d, Histogram2d
from cockpit.engine.needs import Diagonal, Known
from cockpit.engine.statistics import (
    AbsMax,
    Direction,
    Norm2,
    Projection,
    SquareSum,
    Total,
)
from cockpit.errors import Gap
from layer_check import normal

PARAMETERS: dict[str, Tensor] = {"a": normal(2), "b": normal(3, seed=1)}


def filled() -> Table:
    """Two micro-batches of 2 and 3 examples; ``b`` takes part in the second only."""
    table = Table(PARAMETERS)
    table.begin(2, ["a"], {})
    table.add(Norm2(), "a", torch.tensor([1.0, 2.0]))
    table.add(Total(), "a", torch.tensor([1.0, 1.0]))
    table.begin(3, ["a", "b"], {})
    table.add(Norm2(), "a", torch.tensor([3.0, 4.0, 5.0]))
    table.add(Total(), "a", torch.tensor([0.5, 0.0]))
    table.add(Norm2(), "b", torch.tensor([10.0, 20.0, 30.0]))
    return table


def test_micro_batches_are_joined_in_order() -> None:
    table = filled()
    table.close([Norm2(), Total()])
    assert (table.examples, table.batches) == (5, 2)
    assert table.by_parameter(Norm2())["a"].tolist() == [1, 2, 3, 4, 5]
    assert table.by_parameter(Total())["a"].tolist() == [1.5, 1.0]


def test_who_did_not_take_part_in_a_micro_batch_had_zero_gradients() -> None:
    table = filled()
    table.close([Norm2()])
    assert table.by_parameter(Norm2())["b"].tolist() == [0, 0, 10, 20, 30]
    assert table.total(Norm2()).tolist() == [1, 2, 13, 24, 35]


@pytest.mark.parametrize(
    ("statistic", "missing"),
    [
        (Total(), torch.zeros(3)),
        (SquareSum(), torch.zeros(3)),
        (Projection(Direction.UPDATE), torch.zeros(2)),
        (AbsMax(), torch.zeros(())),
        (Histogram1d(2, -1, 1), torch.tensor([0, 6, 0, 0, 0, 0])),
    ],
    ids=lambda x: type(x).__name__,
)
def test_zeros_of_every_kind(statistic, missing: Tensor) -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["b"], {})
    table.close([statistic])
    assert torch.equal(table.by_parameter(statistic)["b"].double(), missing.double())


def test_zeros_are_counted_at_the_parameters_before_the_step() -> None:
    parameter = torch.tensor([-0.5])
    table = Table({"p": parameter})
    table.begin(2, ["p"], {})
    statistic = Histogram2d((1, 2), (-1, 1), (-1, 1))
    table.fill([statistic])
    parameter.fill_(5.0)  # the optimiser moves
    table.close([statistic])
    assert table.by_parameter(statistic)["p"].tolist() == [2, 0, 0, 0, 0, 0]


def test_a_micro_batch_may_come_in_pieces_and_late() -> None:
    table = Table({"a": normal(2)})
    table.begin(3, ["a"], {})
    table.begin(1, ["a"], {})
    table.add(Norm2(), "a", torch.tensor([9.0]))
    table.add(Norm2(), "a", torch.tensor([1.0, 2.0]), batch=0)
    table.add(Norm2(), "a", torch.tensor([3.0]), batch=0)
    table.close([Norm2()])
    assert table.by_parameter(Norm2())["a"].tolist() == [1, 2, 3, 9]


def test_a_micro_batch_may_start_over_or_be_taken_back() -> None:
    table = filled()
    table.resize(1)
    table.add(Norm2(), "a", torch.tensor([7.0]))
    table.begin(4, ["a"], {})
    table.add(Norm2(), "a", torch.tensor([8.0] * 4))
    table.drop()
    table.close([Norm2(), Total()])
    assert table.examples == 3
    assert table.by_parameter(Norm2())["a"].tolist() == [1, 2, 7]
    assert table.by_parameter(Total())["a"].tolist() == [1, 1]


def test_unused_parameters_are_absent() -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["a"], {})
    table.add(Norm2(), "a", torch.ones(2))
    table.close([Norm2()])
    assert list(table.by_parameter(Norm2())) == ["a"]
    assert table.total(Norm2()).tolist() == [1, 1]


def test_a_gap_leaves_the_others_and_the_total_says_why() -> None:
    table = filled()
    table.gap("b", "nobody knows")
    table.gap("b", "a later reason")
    table.close([Norm2()])
    assert list(table.by_parameter(Norm2())) == ["a"]
    with pytest.raises(Gap, match=r"^not_covered: b: nobody knows$"):
        table.total(Norm2())


def test_several_gaps_are_counted() -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["a", "b"], {"a": "one", "b": "two"})
    table.close([Norm2()])
    with pytest.raises(Gap, match=r"^not_covered: . and 1 more: "):
        table.total_exists(Norm2())


def test_somebody_thought_unused_took_part_after_all() -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["a"], {})
    table.add(Norm2(), "a", torch.ones(2))
    table.begin_using("b", "came from elsewhere")
    table.close([Norm2()])
    assert table.used == {"a", "b"}
    with pytest.raises(Gap, match="b: came from elsewhere"):
        table.total(Norm2())


def test_nothing_took_part() -> None:
    table = Table(PARAMETERS)
    table.begin(2, [], {})
    table.close([Norm2()])
    with pytest.raises(Gap, match=r"^no_gradients"):
        table.total(Norm2())


def test_one_statistic_may_be_given_up() -> None:
    table = filled()
    table.void(Norm2(), "needs_full_batch: for a reason")
    table.close([Norm2(), Total()])
    for ask in (table.by_parameter, table.total):
        with pytest.raises(Gap, match=r"^needs_full_batch: for a reason$"):
            ask(Norm2())
    assert set(table.by_parameter(Total())) == {"a", "b"}


def test_closing_again_changes_nothing() -> None:
    table = filled()
    table.close([Norm2()])
    before = table.by_parameter(Norm2())["a"]
    table.close([Norm2(), Total()])
    assert table.by_parameter(Norm2())["a"] is before


def test_restored_statistics_are_those_of_a_closed_table() -> None:
    table = filled()
    table.close([Norm2()])
    again = Table(PARAMETERS)
    again.restore(Norm2(), table.by_parameter(Norm2()))
    assert torch.equal(again.total(Norm2()), table.total(Norm2()))
    assert again.used == {"a", "b"}


@pytest.mark.parametrize(("given", "seen"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_elements_are_seen_in_a_wide_dtype(given: torch.dtype, seen: torch.dtype) -> None:
    assert Table({"a": torch.zeros(1, dtype=given)}).dtype == seen


# -- statistics had in other ways, and numbers on the host ----------------------------------------------


def test_entering_covered_parameters_or_everywhere() -> None:
    values = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    table = Table(PARAMETERS)
    table.begin(2, ["a", "b"], {"b": "nobody knows"})
    table.enter(MeanNorm2(), values)
    table.enter(Length(Known.GRADIENTS), values, everywhere=True)
    assert list(table.by_parameter(MeanNorm2())) == ["a"]
    assert list(table.by_parameter(Length(Known.GRADIENTS))) == ["a", "b"]
    with pytest.raises(Gap, match="b: nobody knows"):
        table.total(MeanNorm2())
    assert float(table.total(Length(Known.GRADIENTS))) == 3


def test_deriving_needs_all_sources() -> None:
    table = filled()
    table.add(SquareSum(), "a", torch.tensor([2.0, 3.0]), batch=0)
    table.close([Total(), SquareSum()])
    table.derive(MeanNorm2(), 5)
    assert list(table.by_parameter(MeanNorm2())) == ["a", "b"]
    torch.testing.assert_close(
        table.by_parameter(MeanNorm2())["a"], torch.tensor(3.25 / 25, dtype=torch.float64)
    )
    table.derive(Trace(Diagonal("diag_h")), 5)
    assert table.by_parameter(Trace(Diagonal("diag_h"))) == {}
    assert not table.has(Trace(Diagonal("diag_h")))


def test_small_numbers_are_offered_to_the_host() -> None:
    table = filled()
    table.close([Norm2(), Total()])
    table.enter(MeanNorm2(), {})
    ((statistic, names, values),) = table.numbers()
    assert (statistic, names) == (Norm2(), ("a", "b"))
    assert [v.tolist() for v in values] == [[1, 2, 3, 4, 5], [0, 0, 10, 20, 30]]
    assert table.entered == [Norm2(), Total(), MeanNorm2()]


@pytest.mark.parametrize("statistic", [Norm2(), AbsMax()], ids=lambda s: type(s).__name__)
def test_settled_numbers_are_those_of_the_tensors(statistic) -> None:
    rows = {"a": normal(3).abs(), "b": normal(3, seed=1).abs()}
    plain, settled = Table(PARAMETERS), Table(PARAMETERS)
    for table in (plain, settled):
        table.begin(3, ["a", "b"], {})
    plain.enter(statistic, rows)
    settled.settle(statistic, ("a", "b"), torch.stack(list(rows.values())).numpy())
    assert settled.has(statistic)
    assert torch.equal(settled.total(statistic), plain.total(statistic))
    for table in (plain, settled):
        names, array = table.stacked(statistic)
        assert names == ("a", "b")
        assert array.tolist() == [row.tolist() for row in rows.values()]
    for name, row in settled.by_parameter(statistic).items():
        assert torch.equal(row, rows[name])
    assert settled.stacked(statistic)[1].tolist() == plain.stacked(statistic)[1].tolist()


def test_settled_numbers_of_some_are_a_gap_in_the_total() -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["a", "b"], {"b": "nobody knows"})
    table.settle(Norm2(), ("a",), normal(1, 2).numpy())
    with pytest.raises(Gap, match=r"^not_covered: b: nobody knows$"):
        table.total(Norm2())


def test_counts_stay_whole() -> None:
    table, statistic = Table(PARAMETERS), Histogram1d(1, -1, 1)
    table.begin(2, ["a"], {})
    table.settle(statistic, ("a",), torch.tensor([[2**53 + 1, 0, 0, 0, 0]]).numpy())
    assert table.total(statistic).tolist() == [2**53 + 1, 0, 0, 0, 0]
    assert table.by_parameter(statistic)["a"].tolist() == [2**53 + 1, 0, 0, 0, 0]


def test_statistics_that_nobody_has() -> None:
    table = filled()
    assert not table.has(Norm2()), "nothing is joined yet"
    table.close([Norm2()])
    assert table.has(Norm2())
    names, array = table.stacked(SquareSum())
    assert (names, array.size) == ((), 0)


def test_voided_statistics_are_not_stacked() -> None:
    table = filled()
    table.close([Norm2()])
    table.void(Norm2(), "clipped: for a reason")
    with pytest.raises(Gap, match=r"^clipped: for a reason$"):
        table.stacked(Norm2())


def test_no_example_counts() -> None:
    table = Table({"a": normal(2)})
    table.begin(0, ["a"], {})
    table.add(Norm2(), "a", torch.zeros(0))
    table.close([Norm2()])
    with pytest.raises(Gap, match="no_examples"):
        table.stacked(Norm2())


def test_filling_leaves_what_is_there() -> None:
    table = Table(PARAMETERS)
    table.begin(2, ["a"], {})
    table.add(Norm2(), "a", torch.tensor([1.0, 2.0]))
    table.fill([Norm2()], everywhere=True)
    table.begin_using("b", "elsewhere")
    table.fill([Norm2()])
    table.close([Norm2()])
    assert table.by_parameter(Norm2())["a"].tolist() == [1, 2]
    assert list(table.by_parameter(Norm2())) == ["a"]


def test_large_statistics_are_let_go() -> None:
    table = filled()
    for name, value in PARAMETERS.items():
        table.add(SquareSum(), name, torch.ones_like(value))
        table.add(Total(), name, torch.ones_like(value))
    table.close([Norm2(), SquareSum(), Total()])
    table.shrink({Total()})
    assert set(table.entered) == {Norm2(), Total()}
