"""The outcome of a step while its numbers are on their way, and when they have arrived."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.scaling import LAST, MEAN, UPDATE, Scaling
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Transfer, packed
from cockpit.engine.derived import Length
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Norm2, SquareSum, Total
from layer_check import normal

PARAMETERS = {"a": normal(2), "b": normal(3)}
NORMS = {"a": normal(4).square(), "b": normal(4, seed=1).square()}
COUNTS = {"a": torch.tensor([1, 2, 0, 0, 0, 0]), "b": torch.tensor([5, 6, 0, 0, 0, 0])}
HISTOGRAM = Histogram1d(2, -1, 1)


def observed(losses: Tensor | None = None) -> Observed:
    table = Table(PARAMETERS)
    table.enter(Norm2(), NORMS, everywhere=True)
    table.enter(HISTOGRAM, COUNTS, everywhere=True)
    table.enter(Total(), dict(PARAMETERS), everywhere=True)
    return Observed(4, table, {} if losses is None else {Known.LOSSES: losses})


def test_small_numbers_and_losses_arrive() -> None:
    o = observed(normal(4, seed=2))
    o.send()
    assert o.arrived
    o.settle()
    names, norms = o.table.stacked(Norm2())
    assert names == ("a", "b")
    assert np.array_equal(norms, torch.stack(list(NORMS.values())).numpy())
    assert o.table.stacked(HISTOGRAM)[1].dtype == np.int64
    assert torch.equal(o.known[Known.LOSSES], normal(4, seed=2))
    assert o.notes == ()


def test_what_is_as_large_as_a_parameter_stays_where_it_is() -> None:
    o = observed()
    o.send()
    sent = [statistic for statistic, _, _ in o.table.numbers()]
    assert sent == [Norm2(), HISTOGRAM]
    assert o.table.by_parameter(Total())["a"] is PARAMETERS["a"]


@pytest.mark.parametrize("losses", [None, normal(3)])
def test_without_statistics(losses: Tensor | None) -> None:
    o = Observed(3, Table({}), {} if losses is None else {Known.LOSSES: losses})
    o.send()
    assert o.arrived
    o.settle()
    assert set(o.known) == (set() if losses is None else {Known.LOSSES})
    if losses is not None:
        assert torch.equal(o.known[Known.LOSSES], losses)


def test_losses_keep_the_values_of_the_step() -> None:
    losses = normal(4)
    before = losses.clone()
    o = observed(losses)
    o.send()
    losses.zero_()
    o.settle()
    assert torch.equal(o.known[Known.LOSSES], before)


class Slow(Transfer):
    """Numbers that have not arrived before somebody waits for them."""

    @property
    def arrived(self) -> bool:
        return False


def test_one_late_transfer_is_enough_not_to_have_arrived() -> None:
    o = observed()
    o.send()
    o.add([], Slow(packed([normal(1)])))
    assert not o.arrived
    o.settle()
    assert o.arrived, "settled: nothing is awaited any more"


def test_several_transfers_and_what_follows_from_them() -> None:
    o = Observed(2, Table(PARAMETERS), {})
    slopes = [normal(2, seed=k) for k in range(4)]
    o.add(
        [(MEAN, ("a", "b")), (LAST, ("a", "b"))],
        Transfer(packed([*slopes, normal(2, seed=9)])),
    )
    o.scaling = Scaling({"a": 0.1, "b": 0.2}, {"a": 2.0, "b": 3.0})
    o.add([(Length(Known.UPDATES), ("a", "b"))], Transfer(packed([torch.tensor(4.0), torch.tensor(9.0)])))
    o.settle()
    np.testing.assert_allclose(o.table.stacked(UPDATE)[1][1], -0.2 * slopes[1].numpy())
    np.testing.assert_allclose(o.table.stacked(LAST)[1], [2 * slopes[2].numpy(), 3 * slopes[3].numpy()])
    assert o.table.stacked(Length(Known.UPDATES))[1].tolist() == [4, 9]
    assert torch.equal(o.known[Known.LOSSES], normal(2, seed=9))


def test_the_second_transfer_of_a_recorded_step_leaves_the_first_alone() -> None:
    """As `Tapes.observed` adds them where the optimiser is not plain gradient descent."""
    o = Observed(2, Table(PARAMETERS), {})
    slopes = [normal(2), normal(2, seed=1)]
    o.add([(LAST, ("a", "b"))], Transfer(packed(slopes)))
    o.scaling = Scaling(None, {"a": 1.0, "b": 1.0})
    o.add([(Length(Known.UPDATES), ("a",))], Transfer(packed([torch.tensor(4.0)])))
    o.settle()
    np.testing.assert_allclose(o.table.stacked(LAST)[1], torch.stack(slopes).numpy())


def test_numbers_of_further_parameters_come_in_their_order() -> None:
    o = Observed(2, Table({"a": normal(1), "b": normal(1), "c": normal(1)}), {})
    o.add(
        [(MEAN, ("a", "c")), (LAST, ("a",))],
        Transfer(packed([normal(2), normal(2, seed=2), normal(2, seed=5)])),
    )
    o.add(
        [(MEAN, ("b",)), (UPDATE, ("b",))],
        Transfer(packed([normal(2, seed=1), normal(2, seed=4)])),
        more=True,
    )
    o.settle()
    names, slopes = o.table.stacked(MEAN)
    assert names == ("a", "b", "c")
    np.testing.assert_array_equal(slopes, torch.stack([normal(2, seed=k) for k in range(3)]).numpy())
    assert o.table.stacked(LAST)[0] == ("a",)
    assert o.table.stacked(UPDATE)[0] == ("b",)


def test_numbers_that_are_none_are_noted_when_they_are_known() -> None:
    o = observed(torch.tensor([1.0, torch.nan, torch.inf]))
    lengths = {"a": torch.tensor(torch.nan), "b": torch.tensor(1.0)}
    o.table.enter(Length(Known.GRADIENTS), lengths, everywhere=True)
    o.send()
    assert o.notes == ()
    o.settle()
    assert list(o.notes) == [
        ("nonfinite_loss", "2 of the losses are NaN or infinite: examples [1, 2]"),
        ("nonfinite_gradient", "NaN or infinite gradients in 1 parameters: ['a']"),
    ]


@pytest.mark.parametrize("vectors", [Known.GRADIENTS, Known.PARAMETERS, Known.UPDATES])
def test_vectors_of_the_models_size_make_it_heavy(vectors: Known) -> None:
    assert not Observed(1, Table({}), {Known.LOSSES: normal(1)}).heavy
    assert not Observed(1, Table({}), {}).heavy
    assert Observed(1, Table({}), {Known.LOSSES: normal(1), vectors: {}}).heavy


def test_statistics_of_a_parameters_size_may_be_derived_from_later() -> None:
    o = observed()
    o.table.enter(SquareSum(), dict(PARAMETERS), everywhere=True)
    o.send()
    o.settle()
    assert torch.equal(o.table.by_parameter(SquareSum())["b"], PARAMETERS["b"])


def test_steps_that_are_alike_wait_with_one_table_and_are_settled_with_their_own() -> None:
    one, two = (Observed(2, Table({"a": normal(1)}), {Known.LOSSES: None}) for _ in range(2))
    for k, step in enumerate((one, two)):
        step.add(
            [(Length(Known.GRADIENTS), ("a",))], Transfer(packed([torch.tensor(4.0 + k), normal(2, seed=k)]))
        )
    table, known = one.table, one.known
    two.share(table, known)
    assert two.table is table
    assert two.known is known
    for k, step in enumerate((one, two)):
        step.settle()
        assert step.table.stacked(Length(Known.GRADIENTS))[1].tolist() == [4.0 + k]
        assert torch.equal(step.known[Known.LOSSES], normal(2, seed=k))
    assert not table.has(Length(Known.GRADIENTS))
    assert known == {Known.LOSSES: None}


def test_what_holds_numbers_is_not_shared() -> None:
    one, two = (Observed(2, Table({}), {Known.LOSSES: normal(2, seed=k)}) for k in range(2))
    two.share(one.table, one.known)
    assert torch.equal(two.known[Known.LOSSES], normal(2, seed=1))
