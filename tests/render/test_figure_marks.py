"""Each mark as matplotlib's artists, whose data are those of the mark."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure

from cockpit.instruments.chart import Band, Bars, Disc, Floats, Guide, Heat, Line, Ticks, Zone
from cockpit.render.figure_marks import FEW, Pen, averaged, draw, legend_labels
from cockpit.render.palette import DARK, LIGHT

X = np.arange(10.0)
NAN = float("nan")


@pytest.fixture
def pen() -> Pen:
    axes = Figure().add_subplot()
    axes.set(xlim=(0, 9), ylim=(0, 10))
    return Pen(axes, axes.twinx(), LIGHT)


def test_line(pen: Pen) -> None:
    ((artist, label),) = draw(Line("loss", X, X**2, "second", dashed=True), pen)
    (line,) = pen.axes.lines
    assert (artist, label) == (line, "loss")
    assert np.array_equal(line.get_xydata(), np.stack([X, X**2], 1))
    assert line.get_color() == LIGHT.tones["second"]
    assert line.get_linestyle() == "--"


def test_noisy_line_is_drawn_with_its_average_above(pen: Pen) -> None:
    values = np.sin(X)
    draw(Line("loss", X, values, smooth=True), pen)
    raw, smooth = pen.axes.lines
    assert np.array_equal(raw.get_ydata(), values)
    assert np.array_equal(smooth.get_ydata(), averaged(values))
    assert raw.get_linestyle() == "None"
    assert raw.get_zorder() < smooth.get_zorder()
    long = np.arange(FEW + 1.0)
    draw(Line("loss", long, long, smooth=True), pen)
    assert pen.axes.lines[2].get_linestyle() == "-"


def test_right_lines_stand_on_the_right_axis(pen: Pen) -> None:
    draw(Line("accuracy", X, X, right=True), pen)
    draw(Bars("", X, X[:-1], right=True), pen)
    assert not pen.axes.lines
    assert not pen.axes.patches
    assert len(pen.right.lines) == 1
    assert len(pen.right.patches) == 2


def test_a_point_between_gaps_is_a_dot(pen: Pen) -> None:
    values = np.array([1.0, NAN, 3.0, NAN, 5.0, 6.0])
    draw(Line("", X[:6], values), pen)
    _, dots = pen.axes.lines
    assert np.asarray(dots.get_xydata()).tolist() == [[0, 1], [2, 3]]


def test_band(pen: Pen) -> None:
    draw(Band("error", X, X - 1, X + 1), pen)
    (area,) = pen.axes.collections
    box = area.get_paths()[0].get_extents()
    assert (box.x0, box.x1, box.y0, box.y1) == (0, 9, -1, 10)


@pytest.mark.parametrize("flat", [False, True])
def test_bars(pen: Pen, flat: bool) -> None:
    edges, heights = np.array([0.0, 1.0, 4.0]), np.array([2.0, NAN])
    draw(Bars("counts", edges, heights, flat=flat), pen)
    outline, filled = pen.axes.patches
    for shape in (outline, filled):
        values, found, _ = shape.get_data()  # type: ignore[attr-defined]
        assert values.tolist() == [2.0, 0.0]
        assert found.tolist() == edges.tolist()
        assert shape.orientation == ("horizontal" if flat else "vertical")  # type: ignore[attr-defined]
    assert filled.get_fill()
    assert not outline.get_fill()


def test_heat(pen: Pen) -> None:
    values = np.array([[0.0, 1.0, NAN], [10.0, 100.0, 1000.0]])
    draw(Heat("count", np.arange(4.0), np.arange(3.0), values, "log"), pen)
    mesh = pen.mesh
    assert mesh is not None
    found = np.ma.asarray(mesh.get_array())
    assert found.mask.tolist() == [[True, False, True], [False] * 3]
    assert isinstance(mesh.norm, LogNorm)
    assert (mesh.norm.vmin, mesh.norm.vmax) == (1.0, 1000.0)
    assert np.asarray(mesh.get_coordinates())[0, -1].tolist() == [3.0, 0.0]  # row 0 at the bottom


def test_shades_can_be_given(pen: Pen) -> None:
    pen.shades = (0.1, 7.0)
    draw(Heat("count", np.arange(3.0), np.arange(2.0), np.array([[1.0, 2.0]])), pen)
    assert pen.mesh is not None
    assert (pen.mesh.norm.vmin, pen.mesh.norm.vmax) == (0.1, 7.0)


@pytest.mark.parametrize("values", [np.zeros((1, 2)), np.full((1, 2), NAN), np.full((1, 2), 3.0)])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_heat_without_contrast(pen: Pen, values: Floats, scale: str) -> None:
    draw(Heat("", np.arange(3.0), np.arange(2.0), values, scale), pen)  # type: ignore[arg-type]
    assert pen.mesh is not None
    assert pen.mesh.norm.vmin < pen.mesh.norm.vmax  # type: ignore[operator]


def test_guide_and_its_word(pen: Pen) -> None:
    draw(Guide("y", 5.0, "goal", "good"), pen)
    draw(Guide("x", 99.0, "outside"), pen)
    draw(Guide("y", NAN, "nowhere"), pen)
    across, down = pen.axes.lines
    assert np.asarray(across.get_ydata()).tolist() == [5.0, 5.0]
    assert np.asarray(down.get_xdata()).tolist() == [99.0, 99.0]
    assert [text.get_text() for text in pen.right.texts] == ["goal"]
    assert pen.right.texts[0].get_color() == LIGHT.tones["good"]


def test_words_stay_inside(pen: Pen) -> None:
    draw(Guide("x", 8.5, "a long word here"), pen)
    draw(Guide("y", 9.9, "at the top"), pen)
    beside, below = pen.right.texts
    assert beside.get_horizontalalignment() == "right"
    assert below.get_verticalalignment() == "top"


def test_zone_ends_at_the_axes(pen: Pen) -> None:
    draw(Zone("x", -np.inf, 3.0, "warm-up"), pen)
    draw(Zone("y", 20.0, 30.0), pen)
    (strip,) = pen.axes.patches
    assert (strip.get_x(), strip.get_width()) == (0.0, 3.0)  # type: ignore[attr-defined]


def test_disc_on_a_symmetric_axis_is_the_curve_that_it_becomes(pen: Pen) -> None:
    pen.axes.set_xscale("symlog", linthresh=0.1)
    ((rim, label),) = draw(Disc(1.5, "norm"), pen)
    points = np.asarray(rim.get_xydata())  # type: ignore[attr-defined]
    assert label == "norm"
    assert np.allclose(np.hypot(points[:, 0], points[:, 1]), 1.5)
    assert draw(Disc(NAN), pen) == []


def test_ticks_stand_on_the_axis(pen: Pen) -> None:
    ((feet, _),) = draw(Ticks("gaps", np.array([2.0, NAN, 4.0]), ("a", "b", "c")), pen)
    assert np.asarray(feet.get_xydata()).tolist() == [[2, 0], [4, 0]]  # type: ignore[attr-defined]
    assert to_hex(feet.get_color()) == LIGHT.tones["bad"]  # type: ignore[attr-defined]
    assert draw(Ticks("gaps", np.empty(0), ()), pen) == []


def test_of_several_runs_colours_are_runs_and_dashes_are_series(pen: Pen) -> None:
    second = Pen(pen.axes, pen.right, DARK, run="#123456", first=False)
    marks = [
        Line("one", X, X),
        Line("two", X, X),
        Bars("three", X, X[:-1]),
        Guide("y", 1.0),
        Zone("y", 1.0, 2.0),
    ]
    for mark in (*marks, Heat("", np.arange(3.0), np.arange(2.0), np.ones((1, 2)))):
        draw(mark, second)
    assert [line.get_color() for line in pen.axes.lines] == ["#123456"] * 2
    assert len({str(dashes) for dashes, _ in second.series}) == 3
    assert [label for _, label in second.series] == ["one", "two", "three"]
    assert len(pen.axes.patches) == 1  # the outline of the bars; guides, zones and maps are the first run's
    assert second.mesh is None


def test_average_starts_where_the_values_start_and_skips_gaps() -> None:
    constant = np.array([3.0, 3.0, NAN, 3.0])
    assert averaged(constant)[[0, 1, 3]].tolist() == pytest.approx([3.0, 3.0, 3.0])
    assert np.isnan(averaged(constant)[2])
    noise = np.random.default_rng(0).normal(size=2000)
    assert averaged(noise)[100:].std() < 0.3 * noise.std()


def test_only_some_marks_stand_in_a_legend() -> None:
    assert legend_labels([Line("a", X, X), Line("", X, X), Guide("x", 1.0, "b"), Disc(1.0, "c")]) == [
        "a",
        "c",
    ]


def test_other_things_are_no_marks(pen: Pen) -> None:
    with pytest.raises(TypeError, match="is not a mark"):
        draw("line", pen)  # type: ignore[arg-type]
