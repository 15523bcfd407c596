"""Readings become columns: statuses, plain numbers, mappings of a user's own quantity, one transfer for all."""

from __future__ import annotations

import math

import numpy as np
import torch

from cockpit.quantities.quantity import Reading, Readings
from cockpit.session.columns import COUPLED, columns, columns_of_steps
from cockpit.store.record import NONFINITE, Column, Histogram, Histograms, Numbers, Record

HIST = Histogram(np.array([1, 2]), np.arange(3.0))


def only(found: list[Record | Column]) -> Column:
    (one,) = found
    assert isinstance(one, Column)
    return one


def test_numbers_and_histograms_travel_as_they_are() -> None:
    numbers = Numbers(("a", "b"), [1.0, 2.0])
    one = only(columns(3, "q", Reading(0.5, numbers, "odd"), None))
    assert (one.step, one.name, one.value, one.status, one.marks) == (3, "q", 0.5, "odd", None)
    assert one.parts is numbers
    histograms = Histograms(("a",), np.array([[1, 2]]), np.arange(3.0))
    one = only(columns(3, "q", Reading(HIST, histograms), None))
    assert (one.value, one.parts) == (HIST, histograms)


def test_a_mapping_of_numbers_becomes_one_array() -> None:
    found = {"a": torch.tensor(1.0, requires_grad=True), "b": 2, "c": np.float32(3)}
    first, second = columns(0, "q", Reading(torch.tensor(4.0), found), {"b": COUPLED})
    assert isinstance(first, Column)
    assert isinstance(second, Column)
    assert (first.value, first.status) == (4.0, COUPLED)
    assert dict(second.parts or {}) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert second.marks == {"b": COUPLED}


def test_arrays_and_histograms_in_a_mapping_stay_by_themselves() -> None:
    found = {"a": torch.ones(2, 2), "b": HIST, "c": 1.0}
    whole, numbers, *rest = columns(0, "q", Reading(by_parameter=found), {"a": COUPLED})
    assert len(whole) == 0  # type: ignore[arg-type]
    assert isinstance(numbers, Column)
    assert dict(numbers.parts or {}) == {"c": 1.0}
    assert [(one.scope, one.status) for one in rest if isinstance(one, Record)] == [
        ("a", COUPLED),
        ("b", "ok"),
    ]
    assert rest[0].value.shape == (2, 2)  # type: ignore[union-attr]


def test_what_is_not_finite_is_marked_unless_there_is_a_reason_already() -> None:
    for value in (math.nan, math.inf, torch.tensor(-math.inf)):
        assert only(columns(0, "q", Reading(value), None)).status == NONFINITE
        assert only(columns(0, "q", Reading(value), {"a": COUPLED})).status == NONFINITE
        assert only(columns(0, "q", Reading(value, status="flat"), {"a": COUPLED})).status == "flat"
    assert only(columns(0, "q", Reading(1.0), {"a": COUPLED})).status == COUPLED


def test_further_numbers_have_names_of_their_own_and_no_marks() -> None:
    more = {"error": math.nan, "each": {"a": torch.tensor(1.0), "": 2.0}, "all": Numbers(("a",), [math.nan])}
    _, error, each, every = columns(0, "q", Reading(1.0, more=more), {"a": COUPLED})
    assert isinstance(error, Column)
    assert (error.name, error.status) == ("q.error", "ok")
    assert math.isnan(error.value)  # type: ignore[arg-type]
    for column, expected in ((each, {"a": 1.0, "": 2.0}), (every, None)):
        assert isinstance(column, Column)
        assert (column.marks, column.checked) == (None, False)
        assert expected is None or dict(column.parts or {}) == expected
    assert (each.name, every.name) == ("q.each", "q.all")


def test_readings_of_a_stretch_become_columns_of_its_steps() -> None:
    values, each = np.array([1.0, math.nan, math.inf]), (("a",), np.ones((3, 1)))
    status, more = ["ok", "flat", "ok"], {"x": np.arange(3.0)}
    first, further = columns_of_steps((4, 5, 6), "q", Readings(values, each, status, more), None)
    assert (first.steps, first.name, first.parts, first.marks) == ((4, 5, 6), "q", each, None)
    assert first.statuses == ["ok", "flat", NONFINITE]
    assert (further.name, further.values, further.statuses) == ("q.x", [0.0, 1.0, 2.0], None)


def test_readings_of_a_stretch_are_marked_like_those_of_a_step() -> None:
    marks = {"a": COUPLED}
    (found,) = columns_of_steps((0, 1), "q", Readings(np.array([1.0, math.nan]), None), marks)
    assert (found.statuses, found.marks) == ([COUPLED, NONFINITE], marks)
    (found,) = columns_of_steps((0, 1), "q", Readings(np.ones(2), None), None)
    assert found.statuses is None
    (found,) = columns_of_steps((0, 1), "h", Readings([HIST, HIST], None, ["ok", "odd"]), None)
    assert (list(found.values), found.statuses) == ([HIST, HIST], ["ok", "odd"])
