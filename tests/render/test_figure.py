"""Figures: what stands in them, for every instrument and every state of a run; not how many pixels it takes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cockpit import Run
from cockpit.errors import CockpitError
from cockpit.instruments.chart import Chart, Line, View
from cockpit.instruments.screens import SCREENS, Screen
from cockpit.instruments.shelf import all_instruments
from cockpit.render.figure import Heading, Picture, compose, figure, picture, save
from cockpit.render.figure_layout import Box, Layout, grid_layout, grid_size, screen_layout, screen_size
from cockpit.render.figure_marks import averaged
from cockpit.render.palette import DARK, LIGHT, Palette
from cockpit.render.status import chart_of
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from render import handmade

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    fake_run(place / "good", steps=60, parameters=6)
    fake_run(place / "other", steps=80, parameters=6, seed=1)
    fake_run(place / "bad", steps=60, parameters=6, trouble="nan")
    fake_run(place / "one", steps=1, parameters=6)
    Writer(place / "empty", {}).close()
    return place


def drawn(
    *charts: Chart, screen: Screen | None = None, palette: Palette = LIGHT, labels: tuple[str, ...] = ()
) -> Figure:
    into = Picture(figsize=grid_size(len(charts), tall=True), dpi=40)
    found = {charts[0].name: list(charts)} if labels else {chart.name: [chart] for chart in charts}
    compose(into, found, screen, palette, Heading(), labels)
    picture(into)
    return into


def texts(found: Figure) -> list[str]:
    return [text.get_text() for text in found.texts]


def axes_of(found: Figure, label: str) -> Axes:
    (axes,) = [axes for axes in found.axes if axes.get_label() == label]
    return axes


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("name", handmade.ALL)
def test_charts_by_hand(name: str, palette: Palette) -> None:
    chart = handmade.ALL[name]
    found = drawn(chart, palette=palette)
    assert chart.title in texts(found)
    assert chart.question in texts(found)
    assert {axes.get_label() for axes in found.axes} >= {f"{name} {plot.place}" for plot in chart.plots}


def test_the_data_are_those_of_the_chart() -> None:
    found = drawn(handmade.SERIES)
    main, right = axes_of(found, "series main"), found.axes[1]
    lines = {len(line.get_xdata()): line for line in main.lines}  # type: ignore[arg-type]
    assert np.array_equal(
        np.asarray(lines[100].get_ydata()), np.minimum.accumulate(np.nan_to_num(handmade.LOSS, nan=9.0))
    )
    assert any(
        np.array_equal(np.asarray(line.get_ydata()), averaged(handmade.LOSS), equal_nan=True)
        for line in main.lines
    )
    assert np.array_equal(np.asarray(right.lines[0].get_xdata()), handmade.STEPS[::10])
    assert (main.get_xlabel(), main.get_ylabel(), right.get_ylabel()) == ("Step", "Loss", "Accuracy")
    assert right.get_ylim() == (0.0, 1.0)
    legend = found.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["spread", "loss", "best", "accuracy", "gaps"]
    assert "2 of 100 steps have no loss." in texts(found)
    assert any("loss 0.123" in text and "best 0.100" in text for text in texts(found))


def test_shapes_keep_their_proportions_on_symmetric_axes() -> None:
    main = axes_of(drawn(handmade.TESTS), "tests main")
    assert (main.get_xscale(), main.get_yscale()) == ("symlog", "symlog")
    assert main.get_aspect() == 1.0
    box = main.get_window_extent()
    assert box.width == pytest.approx(box.height, rel=0.02)


def test_plots_that_measure_the_same_are_in_line_and_have_no_labels_twice() -> None:
    found = drawn(handmade.HEAT)
    main, top, right = (axes_of(found, f"heat {place}") for place in ("main", "top", "right"))
    assert (top.get_position().x0, top.get_position().x1) == (main.get_position().x0, main.get_position().x1)
    assert (right.get_position().y0, right.get_position().y1) == (
        main.get_position().y0,
        main.get_position().y1,
    )
    assert top.get_xlim() == main.get_xlim()
    for axes, labelled in ((top, False), (main, True)):
        assert axes.xaxis.get_tick_params()["labelbottom"] is labelled
    for axes, labelled in ((right, False), (main, True)):
        assert axes.yaxis.get_tick_params()["labelleft"] is labelled


@pytest.mark.parametrize("name", handmade.ALL)
@pytest.mark.parametrize("size", [(6.4, 3.4), (5.0, 2.2), (4.0, 6.0)])
def test_nothing_overlaps(name: str, size: tuple[float, float]) -> None:
    into = Picture(figsize=size, dpi=80)
    compose(into, {name: [handmade.ALL[name]]}, None, LIGHT, Heading())
    picture(into)
    boxes = [axes.get_window_extent() for axes in into.axes if axes.get_label().startswith(name)]
    for k, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:k])
    written = [text.get_window_extent() for text in into.texts] + [
        one.get_window_extent() for one in into.legends
    ]
    for k, box in enumerate(written):
        assert box.x0 >= 0
        assert box.x1 <= size[0] * 80 + 1
        assert not any(box.overlaps(other) for other in written[:k])
        assert not any(box.overlaps(axes) for axes in boxes)


def test_what_is_missing_is_said() -> None:
    found = drawn(handmade.ABSENT)
    assert not found.axes
    assert any("tic_diag" in text for text in texts(found))
    assert any("nothing to show" in text for text in texts(drawn(replace(handmade.ABSENT, missing=""))))


def test_an_empty_line_draws() -> None:
    main = axes_of(drawn(handmade.EMPTY), "series main")
    assert list(main.get_xticks()) == []


def test_dollars_in_names_are_dollars() -> None:
    found = drawn(replace(handmade.SIGNED, title="costs $5 and $6_x"))
    assert "costs $5 and $6_x" in texts(found)


@pytest.mark.parametrize("run", ["good", "bad", "one", "empty"])
@pytest.mark.parametrize("name", sorted(all_instruments()))
def test_every_instrument_of_every_run(folder: Path, name: str, run: str) -> None:
    source = Run(folder / run)
    found = figure(source, name, size=(5, 3))
    picture(found, dpi=30)
    chart = chart_of(source, name, View())
    assert not chart.missing.startswith("This instrument could not"), chart.missing
    assert all_instruments()[name].title in texts(found)
    drawn_axes = [axes for axes in found.axes if axes.get_label().startswith(name)]
    assert len(drawn_axes) == len(chart.plots)
    for axes, plot in zip(drawn_axes, chart.plots, strict=True):
        shown = [np.asarray(line.get_ydata()) for own in (axes, *_twins(found, axes)) for line in own.lines]
        for mark in plot.marks:
            if isinstance(mark, Line):
                assert any(np.array_equal(mark.y, values, equal_nan=True) for values in shown), mark.label


def _twins(found: Figure, axes: Axes) -> list[Axes]:
    place = axes.get_position().bounds
    return [
        other for other in found.axes if other is not axes and np.allclose(other.get_position().bounds, place)
    ]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
def test_screens(folder: Path, screen: Screen, dark: bool) -> None:
    found = figure(Run(folder / "good"), screen=screen.name, dark=dark)
    written = texts(found)
    for column in (column for row in screen.rows for column in row):
        assert column.title.upper() in written
        assert {all_instruments()[name].title for name in column.instruments} <= set(written)
    assert "good" in written
    assert found.get_size_inches()[0] == screen_size(screen)[0]


def test_a_title_of_one_s_own(folder: Path) -> None:
    assert "My run" in texts(figure(Run(folder / "good"), screen="secondary", title="My run"))


def test_view_is_handed_on(folder: Path) -> None:
    run = Run(folder / "good")
    found = figure(run, "grad_norm_gauge", view=View(first=10, last=30, step=20))
    main = axes_of(found, "grad_norm_gauge main")
    low, high = main.get_xlim()
    assert 10 <= low < high <= 30
    assert any(list(np.asarray(line.get_xdata())) == [20, 20] for line in main.lines)  # the moment is marked
    assert "step 20" in " ".join(texts(figure(run, "histogram1d_gauge", view=View(step=20))))
    log = axes_of(figure(run, "grad_norm_gauge", log_steps=True), "grad_norm_gauge main")
    assert log.get_xscale() == "symlog"


def test_several_runs_lie_above_each_other(folder: Path) -> None:
    runs = [Run(folder / name) for name in ("good", "other", "empty")]
    found = figure(runs[0], "distance_gauge", runs=runs[1:])
    main = axes_of(found, "distance_gauge main")
    colours = [line.get_color() for line in main.lines]
    assert set(colours) == {LIGHT.run(0), LIGHT.run(1)}
    labels = [text.get_text() for text in found.legends[0].get_texts()]
    assert labels[:3] == ["good", "other", "empty"]
    assert {"distance", "step size"} <= set(labels)
    assert main.get_xlim()[1] >= 79  # as far as the longer one
    screen = figure(runs[0], screen="secondary", runs=runs[1:2])
    assert [text.get_text() for text in screen.legends[0].get_texts()] == ["good", "other"]
    picture(screen, dpi=30)


def test_what_is_the_same_in_all_runs_belongs_to_none(folder: Path) -> None:
    found = figure(Run(folder / "good"), "alpha_gauge", runs=[Run(folder / "other")])
    main = axes_of(found, "alpha_gauge main")
    parabola = [line for line in main.lines if len(np.asarray(line.get_xdata())) == 61]
    assert [line.get_color() for line in parabola] == [LIGHT.tones["faint"]]


def test_long_names_and_many_runs_fit(folder: Path) -> None:
    good = Run(folder / "good")
    long = fake_run(folder / ("a-very-long-name-" * 5), steps=5, parameters=2)
    for found in (
        figure(Run(long), screen="secondary"),
        figure(Run(long), screen="secondary", runs=[good] * 6),
    ):
        picture(found)
        width = found.get_size_inches()[0] * found.dpi
        head = sorted(
            (one.get_window_extent() for one in (*found.texts, *found.legends)), key=lambda box: -box.y1
        )[:2]
        assert not head[0].overlaps(head[1])
        assert all(box.x0 >= 0 and box.x1 <= width for box in head)


def test_only_one_map_can_be_seen(folder: Path) -> None:
    found = figure(Run(folder / "good"), "histogram2d_gauge", runs=[Run(folder / "other")])
    assert "the map is that of good" in texts(found)
    assert len(axes_of(found, "histogram2d_gauge main").collections) == 1


def test_runs_of_the_same_name_are_numbered(folder: Path) -> None:
    run = Run(folder / "good")
    found = figure(run, "trace_gauge", runs=[run])
    assert [text.get_text() for text in found.legends[0].get_texts()] == ["good (1)", "good (2)"]


def test_unknown_names_get_near_matches(folder: Path) -> None:
    run = Run(folder / "good")
    with pytest.raises(CockpitError, match="did you mean 'alpha_gauge'"):
        figure(run, "alpa_gauge")
    with pytest.raises(CockpitError, match=r"no screen 'first'\. There are: primary"):
        figure(run, screen="first")


def test_a_failing_instrument_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Chart:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(type(all_instruments()["trace_gauge"]), "draw", fail)
    assert any(
        "could not be drawn" in text and "oh" in text
        for text in texts(figure(Run(folder / "good"), "trace_gauge"))
    )


@pytest.mark.parametrize("ending", MAGIC)
def test_files(folder: Path, tmp_path: Path, ending: str) -> None:
    found = figure(Run(folder / "good"), ["trace_gauge", "tic_gauge"])
    file = tmp_path / f"figure.{ending}"
    save(found, file, dpi=40)
    assert file.read_bytes().startswith(MAGIC[ending])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    if ending == "pdf":
        assert b"/Type3" not in file.read_bytes()


def test_other_endings_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CockpitError, match="cannot be written"):
        save(figure(Run(folder / "good"), "trace_gauge"), tmp_path / "figure.xyz")
    assert list(tmp_path.iterdir()) == []


def test_notebooks_show_a_picture(folder: Path) -> None:
    found = Run(folder / "good").plot("trace_gauge", dark=True, first=5)
    assert isinstance(found, Figure)
    assert found._repr_png_().startswith(MAGIC["png"])  # type: ignore[attr-defined]


def test_no_global_state(folder: Path) -> None:
    before = dict(mpl.rcParams)
    mpl.rcParams["axes.grid"], mpl.rcParams["font.size"] = True, 33.0
    try:
        found = figure(Run(folder / "good"), "trace_gauge")
        picture(found)
        assert mpl.rcParams["font.size"] == 33.0
        (title,) = [text for text in found.texts if text.get_text() == "Trace"]
        assert title.get_fontsize() < 12
    finally:
        mpl.rcParams.update(before)
    assert dict(mpl.rcParams) == before


def test_neither_pyplot_nor_torch_is_imported(folder: Path) -> None:
    code = (
        "import sys; from cockpit import Run; Run(sys.argv[1]).plot('trace_gauge')._repr_png_();"
        "print(sorted({'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "good")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
@pytest.mark.parametrize("scale", [0.8, 1.0, 2.0])
def test_panels_lie_in_their_columns_and_do_not_overlap(screen: Screen, scale: float) -> None:
    width, height = (scale * length for length in screen_size(screen))
    layout = screen_layout(screen, width, height)
    check(layout, width, height)
    for _, panel in layout.panels:
        assert any(inside(panel, column) for _, column in layout.columns)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_grids(count: int) -> None:
    width, height = grid_size(count, tall=False)
    layout = grid_layout([str(k) for k in range(count)], width, height)
    assert [name for name, _ in layout.panels] == [str(k) for k in range(count)]
    check(layout, width, height)


def check(layout: Layout, width: float, height: float) -> None:
    whole = Box(0, 0, width, height)
    for boxes in ([box for _, box in layout.panels], [box for _, box in layout.columns]):
        for k, box in enumerate(boxes):
            assert inside(box, whole)
            assert not any(apart(box, other) is False for other in boxes[:k])


def inside(box: Box, outer: Box, slack: float = 1e-9) -> bool:
    return (
        box.x >= outer.x - slack
        and box.y >= outer.y - slack
        and box.x + box.width <= outer.x + outer.width + slack
        and box.y + box.height <= outer.y + outer.height + slack
    )


def apart(one: Box, other: Box) -> bool:
    return (
        one.x + one.width <= other.x
        or other.x + other.width <= one.x
        or one.y + one.height <= other.y
        or other.y + other.height <= one.y
    )
