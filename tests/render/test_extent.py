from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cockpit.instruments.chart import Axis, Bars, Chart, Disc, Guide, Heat, Line, Plot
from cockpit.render.extent import MARGIN, pinned, reach, shades
from render.handmade import HEAT, LAYERS, SERIES, STEPS

NAN = float("nan")


def plot(*values: float, y: Axis = Axis(), guide: float | None = None, right: bool = False) -> Plot:  # noqa: B008
    marks: list[Line | Guide] = [Line("", np.arange(len(values) + 0.0), np.array(values), right=right)]
    if guide is not None:
        marks.append(Guide("y", guide))
    return Plot(tuple(marks), y=y)


def chart(*plots: Plot) -> Chart:
    return Chart("any", "Any", "?", plots)


def test_steps_are_tight_and_values_have_room() -> None:
    assert reach(SERIES.plots[0], "x") == (0.0, 297.0)
    assert reach(plot(1.0, 3.0), "y") == pytest.approx((1.0 - 2 * MARGIN, 3.0 + 2 * MARGIN))
    assert reach(plot(0.0, 2.0), "y") == (0.0, pytest.approx(2.0 + 2 * MARGIN))  # nothing lies below nothing


def test_gaps_do_not_count() -> None:
    assert reach(plot(NAN, 1.0, np.inf, 3.0), "y") == reach(plot(1.0, 3.0), "y")
    assert reach(plot(NAN, NAN), "y") is None
    assert reach(plot(), "y") is None


def test_one_value_has_room_around_it() -> None:
    low, high = reach(plot(5.0, 5.0), "y") or (0, 0)
    assert low < 5 < high
    low, high = reach(plot(0.0), "y") or (0, 0)
    assert low < 0 < high


def test_log_axes_see_only_what_is_positive() -> None:
    low, high = reach(plot(-1.0, 0.0, 0.1, 10.0, y=Axis(scale="log")), "y") or (0, 0)
    assert 0 < low < 0.1 < 10 < high
    assert reach(plot(-1.0, 0.0, y=Axis(scale="log")), "y") is None


def test_a_range_is_obeyed_unless_it_cannot_be() -> None:
    assert reach(plot(1.0, 3.0, y=Axis(range=(-1.0, 9.0))), "y") == (-1.0, 9.0)
    low, _ = reach(plot(1.0, 3.0, y=Axis(scale="log", range=(0.0, 9.0))), "y") or (0, 0)
    assert low > 0


def test_near_guides_are_taken_in_and_far_ones_are_not() -> None:
    assert (reach(plot(0.0, 1.0, guide=1.5), "y") or (0, 0))[1] >= 1.5
    assert (reach(plot(0.0, 1.0, guide=100.0), "y") or (0, 0))[1] < 2
    log = Axis(scale="log")
    assert (reach(plot(1.0, 10.0, y=log, guide=50.0), "y") or (0, 0))[1] >= 50
    assert (reach(plot(1.0, 10.0, y=log, guide=5000.0), "y") or (0, 0))[1] < 50


def test_each_side_has_its_own_marks() -> None:
    assert reach(plot(1.0, 2.0, right=True), "y") is None
    assert reach(plot(1.0, 2.0, right=True), "right") is not None
    edges, heights = np.array([0.0, 1.0, 3.0]), np.array([5.0, 7.0])
    upright, flat = Plot((Bars("", edges, heights),)), Plot((Bars("", edges, heights, flat=True),))
    assert reach(upright, "x") == reach(flat, "y") == (0.0, 3.0)
    assert reach(upright, "y") == reach(flat, "x") == (0.0, pytest.approx(7 * (1 + MARGIN)))
    assert reach(LAYERS.plots[0], "y") == (0.0, 14.0)
    disc = reach(Plot((Disc(2.0),)), "x") or (0, 0)
    assert disc[0] < -2 < 2 < disc[1]


def test_pinned_charts_have_the_same_axes() -> None:
    one, other = pinned([chart(plot(0.0, 1.0)), chart(plot(5.0, 9.0, 7.0))])
    assert one.plots[0].y == other.plots[0].y
    assert one.plots[0].x == other.plots[0].x
    low, high = one.plots[0].y.range or (9, 9)
    assert low == 0.0
    assert high > 9.0
    assert one.plots[0].marks[0].y.tolist() == [0.0, 1.0]  # type: ignore[union-attr]


def test_pinned_scales_are_the_last_one_s_and_symmetric_if_need_be() -> None:
    log, linear = chart(plot(1.0, 2.0, y=Axis(scale="log"))), chart(plot(1.0, 2.0))
    assert [one.plots[0].y.scale for one in pinned([log, linear])] == ["linear", "linear"]
    signed = chart(plot(-1.0, 2.0, y=Axis(scale="symlog", linear=0.5)))
    found = [one.plots[0].y for one in pinned([signed, log])]
    assert [(axis.scale, axis.linear) for axis in found] == [("symlog", 0.5)] * 2
    assert (found[0].range or (0, 0))[0] <= -1.0


def test_pinned_charts_may_be_missing() -> None:
    absent = Chart("any", "Any", "?", missing="not yet")
    first, second = pinned([absent, chart(plot(1.0, 2.0))])
    assert first.plots == ()
    assert second.plots[0].y.range is not None
    assert pinned([]) == []


def test_the_first_frames_do_not_make_all_others_small() -> None:
    frames = [chart(plot(0.0, 100.0))] + [chart(plot(0.0, 1.0)) for _ in range(19)]
    assert (pinned(frames)[0].plots[0].y.range or (0, 0))[1] < 2


def test_shades() -> None:
    assert shades([SERIES]) is None
    low, high = shades([HEAT, SERIES]) or (0, 0)
    assert 0 < low < high == pytest.approx(1e4, rel=0.1)
    linear = Plot((Heat("", np.arange(3.0), np.arange(2.0), np.array([[-1.0, np.nan]])),))
    assert shades([replace(HEAT, plots=(linear,))]) == (-1.0, -1.0)
    assert len(STEPS) == 100
