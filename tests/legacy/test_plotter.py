from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from cockpit.instruments.shelf import all_instruments
from cockpit.legacy import Cockpit, CockpitPlotter
from cockpit.legacy.utils.configuration import configuration
from cockpit.render import window
from legacy.training import batches, network, sgd, step

FAST = {"show_plot": False, "savefig_kwargs": {"dpi": 20}}


@pytest.fixture(scope="module")
def watch() -> Cockpit:
    model = network()
    watch, optimizer = Cockpit(model.parameters(), configuration("economy")), sgd(model)
    for t, batch in zip((0, 1, 2, 12), batches(4), strict=True):
        step(watch, t, model, nn.CrossEntropyLoss(), optimizer, batch)
        watch.log(t, 0, 1.0, 1.1, 1.2, 0.5, 0.4, 0.3, 0.1)
    return watch


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_a_cockpit_and_its_log_give_the_same_table(watch: Cockpit, tmp_path: Path) -> None:
    watch.write(str(tmp_path / "log"))
    plotter = CockpitPlotter(secondary_screen=True)
    plotter._read_tracking_results(watch)
    live = plotter.tracking_data
    plotter._read_tracking_results(str(tmp_path / "log"))
    assert live["iteration"].tolist() == plotter.tracking_data["iteration"].tolist() == [0, 1, 2, 12]
    assert {"iteration", *(type(q).__name__ for q in configuration("economy"))} <= set(live.columns)
    assert live["NormTest"].tolist() == plotter.tracking_data["NormTest"].tolist()
    assert live["GradNorm"].map(sum).tolist() == plotter.tracking_data["GradNorm"].map(sum).tolist()
    assert live["Alpha"].isna().tolist() == [False, False, True, True]


def test_a_cockpit_is_drawn(watch: Cockpit) -> None:
    plotter = CockpitPlotter()
    before = dict(mpl.rcParams)
    plotter.plot(watch, show_plot=False)
    assert dict(mpl.rcParams) == before
    (axes,) = [axes for axes in plotter.fig.axes if axes.get_label() == "grad_norm_gauge main"]
    norms = [float(np.hypot.reduce(value)) for value in plotter.tracking_data["GradNorm"]]
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == pytest.approx(norms)
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [0, 1, 2, 12]
    assert {"Cockpit for SGD", "STEP SIZE", "Alpha Distribution", "Performance"} <= set(texts(plotter.fig))
    assert any("hess_trace" in text for text in texts(plotter.fig))  # what was not tracked is said
    assert not hasattr(plotter, "secondary_fig")


def test_files_have_the_original_s_names(watch: Cockpit, tmp_path: Path) -> None:
    CockpitPlotter().plot(watch, save_plot=True, savedir=str(tmp_path / "new"), **FAST)  # type: ignore[arg-type]
    assert (tmp_path / "new" / "cockpit__primary.png").is_file()
    plotter = CockpitPlotter(secondary_screen=True)
    plotter.plot(
        watch,
        show_plot=False,
        save_plot=True,
        savedir=str(tmp_path),
        savename="mine",
        savename_append="end",
        savefig_kwargs={"format": "pdf"},
    )
    for screen in ("primary", "secondary"):
        assert (tmp_path / f"mine__{screen}__end.pdf").read_bytes().startswith(b"%PDF")
    assert "Mean GSNR" in texts(plotter.secondary_fig)


def test_a_log_is_drawn_beside_itself(watch: Cockpit, tmp_path: Path) -> None:
    log = tmp_path / "mnist_mlp" / "Adam" / "lr_0.1" / "seed__log"
    watch.write(str(log))
    plotter = CockpitPlotter()
    plotter.plot(str(log), save_plot=True, **FAST)  # type: ignore[arg-type]
    assert (log.parent / "cockpit__primary.png").is_file()
    assert "Cockpit for Adam" in texts(plotter.fig)
    assert plotter.optimizer == "Adam"


def test_a_live_cockpit_needs_a_place(watch: Cockpit) -> None:
    with pytest.raises(ValueError, match="specify savedir"):
        CockpitPlotter().plot(watch, show_plot=False, save_plot=True)


def test_further_arguments(watch: Cockpit) -> None:
    plotter = CockpitPlotter()
    with pytest.warns(UserWarning, match="was not tracked") as caught:
        plotter.plot(watch, show_plot=False, show_log_iter=True, discard=2, plot_title="Mine", debug=True)
    assert {warning.filename for warning in caught} == {__file__}
    assert plotter.tracking_data["iteration"].tolist() == [0, 1, 2]
    assert "Mine" in texts(plotter.fig)
    (axes,) = [axes for axes in plotter.fig.axes if axes.get_label() == "grad_norm_gauge main"]
    assert axes.get_xscale() == "symlog"
    assert len(np.asarray(axes.lines[0].get_xdata())) == 3


def test_without_pandas_there_is_no_table_but_a_figure(
    watch: Cockpit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("cockpit.legacy.plotter.find_spec", lambda name: None)
    plotter = CockpitPlotter()
    plotter.plot(watch, show_plot=False)
    assert plotter.fig.axes
    assert not hasattr(plotter, "tracking_data")


def test_without_a_display_showing_does_nothing(watch: Cockpit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    mpl.use("agg")
    plotter = CockpitPlotter()
    plotter.plot(watch, show_plot=True, block=True)
    assert plotter.fig.axes


def test_a_window_is_drawn_into_again_and_again(watch: Cockpit, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure()
    asked, shown = [], []
    monkeypatch.setattr(window, "window", lambda name: asked.append(name) or figure)
    monkeypatch.setattr(window, "show", lambda figure, block: shown.append((figure, block)))
    plotter = CockpitPlotter()
    for _ in range(2):
        plotter.plot(watch, block=True)
    assert plotter.fig is figure
    assert asked == ["Cockpit: primary screen"] * 2
    assert shown == [(figure, True)] * 2
    titles = texts(figure)
    assert titles.count("Alpha Distribution") == 1


@pytest.mark.parametrize("ending", ["", ".json"])
def test_animation(watch: Cockpit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr("cockpit.render.figure_layout.COLUMN", 2.0)
    watch.write(str(tmp_path / "log"))
    CockpitPlotter().build_animation(str(tmp_path / "log") + ending, duration=100, loop=3)
    with Image.open(tmp_path / "log__primary.gif") as picture:
        assert picture.n_frames == 4  # type: ignore[attr-defined]
        assert picture.info["duration"] == 100
        assert picture.info["loop"] == 3


def test_other_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="Source must be Cockpit or path"):
        CockpitPlotter()._read_tracking_results(3)  # type: ignore[arg-type]


def test_the_instruments_are_functions(watch: Cockpit) -> None:
    from cockpit.legacy import instruments  # noqa: PLC0415

    plotter, figure = CockpitPlotter(), Figure(figsize=(12, 12))
    plotter._read_tracking_results(watch)
    grid = figure.add_gridspec(5, 3)
    for k, name in enumerate(instruments.__all__):
        getattr(instruments, name)(plotter, figure, grid[k // 3, k % 3])
    known = {
        all_instruments()[name.replace("_1d", "1d").replace("_2d", "2d")].title
        for name in instruments.__all__
    }
    assert known <= set(texts(figure))
    (alpha,) = [axes for axes in figure.axes if axes.get_label() == "alpha_gauge main"]
    cell, box = grid[0, 0].get_position(figure), alpha.get_position()
    assert cell.x0 < box.x0 < box.x1 < cell.x1
    assert cell.y0 < box.y0 < box.y1 < cell.y1
