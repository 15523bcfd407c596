from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from cockpit.instruments.chart import Axis, Line, Plot
from cockpit.render.figure_axes import NAME, plain, powers, set_axis, short, text_width
from cockpit.render.palette import LIGHT


def labels(axis: Axis, *values: float, inches: float = 2.0) -> list[str]:
    figure = Figure()
    axes = figure.add_subplot()
    set_axis(
        axes, Plot((Line("", np.arange(len(values) + 0.0), np.array(values)),), y=axis), "y", LIGHT, inches
    )
    figure.draw_without_rendering()
    low, high = sorted(axes.get_ylim())
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return [label.get_text() for at, label in ticks if low <= at <= high]


@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.3, 1.0, 77.0, 9999.0, 12345.0, 3e7, 4e11, 1e15])
@pytest.mark.parametrize("scale", ["linear", "log", "symlog"])
def test_labels_are_short_and_no_two_alike(size: float, scale: str) -> None:
    for values in ((size, 2 * size), (size, 1.001 * size), (size, 500 * size), (size, 1e7 * size)):
        found = labels(Axis(scale=scale, linear=size), *values)  # type: ignore[arg-type]
        assert len(found) >= 2 or (scale == "symlog" and values[1] < 10 * size), values
        assert len(set(found)) == len(found), found
        assert len(found) <= 9
        assert max(text_width(label, 7.5) for label in found) < 0.62, found


def test_negative_numbers_and_zero() -> None:
    assert plain([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert plain([-2e-5, 0.0]) == ["−2e-5", "0"]
    assert plain([0.0]) == ["0"]
    assert plain([]) == []
    assert [powers(value) for value in (-1000.0, -0.1, 0.0, 50.0)] == ["−10³", "−0.1", "0", "50"]
    found = labels(Axis(scale="symlog", linear=1.0), -1000.0, 1000.0)
    assert found[0].startswith("−10")
    assert "0" in found
    assert found[-1].startswith("10")


def test_steps_are_whole() -> None:
    found = labels(Axis(steps=True), 0.0, 2.0)
    assert found == ["0", "1", "2"]


def test_nothing_to_show_has_no_ticks() -> None:
    assert labels(Axis(scale="log"), -1.0, -2.0) == []
    assert labels(Axis(), float("nan")) == []


def test_layers_have_their_names_but_not_more_than_fit() -> None:
    names = tuple(f"blocks.{k}.weight" for k in range(40))
    assert labels(Axis(names=names[:3]), 0.0)[:2] == ["blocks.0.weight", "blocks.1.weight"]
    assert len(labels(Axis(names=names), 0.0)) <= 14


@pytest.mark.parametrize("name", ["a", "x" * 50, "encoder.layers.3.self_attention.in_projection.weight"])
def test_names_are_shortened(name: str) -> None:
    assert len(short(name)) <= NAME
    assert short(name)[0] == name[0]


def test_layers_of_one_kind_stay_apart() -> None:
    names = {short(f"encoder.layers.{k}.attention.in_proj.weight") for k in range(24)}
    assert len(names) == 24
