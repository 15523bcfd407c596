from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from cockpit.legacy import Cockpit, CockpitPlotter
from cockpit.legacy.utils.configuration import configuration
from legacy.training import batches, network, sgd, step


@pytest.fixture
def watch() -> Cockpit:
    model = network()
    watch, optimizer = Cockpit(model.parameters(), configuration("economy")), sgd(model)
    for t, batch in zip((0, 1, 2, 12), batches(4), strict=True):
        step(watch, t, model, nn.CrossEntropyLoss(), optimizer, batch)
    return watch


def test_a_cockpit_and_its_log_give_the_same_table(watch: Cockpit, tmp_path: Path) -> None:
    watch.write(str(tmp_path / "log"))
    plotter = CockpitPlotter(secondary_screen=True)
    plotter._read_tracking_results(watch)
    live = plotter.tracking_data
    plotter._read_tracking_results(str(tmp_path / "log"))
    assert live["iteration"].tolist() == plotter.tracking_data["iteration"].tolist() == [0, 1, 2, 12]
    assert set(live.columns) == {"iteration"} | {type(q).__name__ for q in configuration("economy")}
    assert live["NormTest"].tolist() == plotter.tracking_data["NormTest"].tolist()
    assert live["GradNorm"].map(sum).tolist() == plotter.tracking_data["GradNorm"].map(sum).tolist()
    assert live["Alpha"].isna().tolist() == [False, False, True, True]


def test_plot_takes_the_original_s_arguments_and_warns(watch: Cockpit) -> None:
    plotter = CockpitPlotter()
    with pytest.warns(UserWarning, match="draws nothing") as caught:
        plotter.plot(
            watch,
            show_plot=False,
            block=False,
            save_plot=True,
            savedir="somewhere",
            savename="cockpit",
            savename_append="1",
            savefig_kwargs={"format": "pdf"},
            show_log_iter=True,
            discard=2,
            plot_title="title",
            debug=True,
        )
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert plotter.tracking_data["iteration"].tolist() == [0, 1, 2]


def test_other_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="Source must be Cockpit or path"):
        CockpitPlotter()._read_tracking_results(3)  # type: ignore[arg-type]
