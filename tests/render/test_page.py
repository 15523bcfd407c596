"""JSON for the page."""

from __future__ import annotations

import json

import numpy as np

from cockpit.instruments.chart import Axis, Chart, Line, Plot
from cockpit.render.page import chart_json, json_text


def test_a_chart_keeps_the_names_of_its_fields() -> None:
    line = Line("loss", np.array([0.0, 1.0, 2.0]), np.array([0.123456789, np.nan, 3.0]))
    found = chart_json(Chart("n", "t", "q", (Plot((line,), x=Axis("Step", steps=True)),)))
    assert (found["name"], found["title"], found["question"], found["missing"]) == ("n", "t", "q", "")
    (plot,) = found["plots"]
    assert plot["x"]["steps"] is True
    assert plot["marks"][0]["kind"] == "line"
    assert (plot["marks"][0]["x"], plot["marks"][0]["y"]) == ([0, 1, 2], [0.1234568, None, 3])


def test_numbers_that_are_not_finite_are_null_at_any_depth() -> None:
    found = json_text({"a": [float("nan"), 1.5], "b": {"c": (float("-inf"), "ü")}})
    assert json.loads(found) == {"a": [None, 1.5], "b": {"c": [None, "ü"]}}
    assert " " not in found


def test_a_name_that_is_no_text_can_be_sent() -> None:
    """Folders may have names that are not UTF-8."""
    json_text({"name": "resum\udce9"}).encode()
