"""Numbers and histograms of all parameters: one array each, and dictionaries for whoever reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cockpit.store.record import Column, Histograms, Numbers


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
