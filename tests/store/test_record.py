"""Numbers and histograms of all parameters: one array each, and dictionaries for whoever reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cockpit.store.record import Column, Columns, Histogram, Histograms, Numbers


def test_numbers_read_like_a_dictionary_and_keep_what_they_were_given() -> None:
    given = np.array([1.0, 2.0], dtype=np.float32)
    numbers = Numbers(("a", "b"), given)
    given[:] = 7.0
    assert dict(numbers) == {"a": 1.0, "b": 2.0}
    assert (numbers["b"], numbers.get("c", -1.0), len(numbers), sum(numbers.values())) == (2.0, -1.0, 2, 3.0)
    assert numbers.array.dtype == np.float64
    with pytest.raises(KeyError):
        numbers["c"]


def test_tensors_are_taken_too() -> None:
    numbers = Numbers(("a", "b"), torch.tensor([1.0, 2.0], requires_grad=True))
    assert dict(numbers) == {"a": 1.0, "b": 2.0}
    found = Histograms(("a",), torch.ones(1, 2, dtype=torch.int32), np.arange(3.0), torch.zeros(1, 4).long())
    assert found["a"].counts.tolist() == [1, 1]


def test_histograms_read_like_a_dictionary() -> None:
    found = Histograms(("a", "b"), np.array([[1, 2], [3, 4]]), np.arange(3.0), np.arange(8).reshape(2, 4))
    one = found["b"]
    assert (one.counts.tolist(), one.underflow, one.overflow, one.nan, one.inf) == ([3, 4], 4, 5, 6, 7)
    assert list(found) == ["a", "b"]
    assert Histograms(("a",), np.array([[1, 2]]), np.arange(3.0))["a"].total == 3


@pytest.mark.parametrize("values", [np.ones(3), np.ones((3, 2)), 1.0])
def test_a_wrong_shape_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="2 names"):
        Numbers(("a", "b"), values)
    with pytest.raises(ValueError, match="2 names"):
        Histograms(("a", "b"), values, np.arange(3.0))


def test_a_column_counts_its_records() -> None:
    assert len(Column(0, "p", 1.0)) == 1
    assert len(Column(0, "p", 1.0, parts=Numbers(("a", "b"), [1, 2]))) == 3
    assert len(Column(0, "p", parts=Numbers(("a", "b"), [1, 2]))) == 2


def test_columns_of_several_steps_are_as_many_columns() -> None:
    several = Columns(
        (3, 4), "p", [1.0, 2.0], ["ok", "odd"], (("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    )
    assert len(several) == 6
    found = [(one.step, one.name, one.value, one.status, dict(one.parts or {})) for one in several]
    assert found == [(3, "p", 1.0, "ok", {"a": 1.0, "b": 2.0}), (4, "p", 2.0, "odd", {"a": 3.0, "b": 4.0})]
    edge = np.arange(3.0)
    whole = [Histogram(np.array([k, k]), edge) for k in range(2)]
    each = [Histograms(("a",), np.array([[k, k]]), edge) for k in range(2)]
    several = Columns((0, 1), "h", whole, parts=each, marks={"a": "odd"})
    assert len(several) == 4
    assert [(one.value, one.parts, one.status, one.marks) for one in several] == [
        (whole[k], each[k], "ok", {"a": "odd"}) for k in range(2)
    ]
    assert len(Columns((0, 1), "p", [1.0, 2.0])) == 2


@pytest.mark.parametrize(
    ("values", "statuses", "parts"),
    [
        ([1.0], None, None),
        ([1.0, 2.0], ["ok"], None),
        ([1.0, 2.0], None, (("a", "b"), np.ones((2, 3)))),
        ([1.0, 2.0], None, (("a", "b"), np.ones((1, 2)))),
        ([1.0, 2.0], None, [Histograms(("a",), np.array([[1, 2]]), np.arange(3.0))]),
    ],
)
def test_columns_that_do_not_fit_their_steps_are_refused(values: Any, statuses: Any, parts: Any) -> None:
    with pytest.raises(ValueError, match=r"2 steps|2 names"):
        Columns((0, 1), "p", values, statuses, parts)
