"""The report: one file that holds what a server would answer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cockpit.cli import main
from cockpit.errors import CockpitError
from cockpit.instruments.chart import View
from cockpit.instruments.shelf import all_instruments
from cockpit.render.page import chart_json
from cockpit.render.report import report
from cockpit.render.single_page import front_end
from cockpit.store.points import Points
from cockpit.store.read import read_numbers
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from render.pages import Page, built

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return built(tmp_path / "dist")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    plain = fake_run(folder / "plain", steps=40, parameters=4)
    evil = fake_run(folder / EVIL, steps=10, parameters=2, trouble="nan")
    return [Run(plain), Run(evil)]


def data_of(page: str) -> dict[str, Any]:
    found = Page(page).data()
    assert isinstance(found, dict)
    return found


def test_holds_every_chart(runs: list[Run], dist: Path) -> None:
    data = data_of(report(runs[:1], dist=dist, moments=5, points=50))
    (run,) = data["runs"]
    assert (run["id"], run["name"], run["last_step"]) == ("run1", "plain", 39)
    charts = data["charts"]["run1"]
    assert set(charts) == set(all_instruments())
    for name, instrument in all_instruments().items():
        steps, drawn = charts[name]["steps"], charts[name]["charts"]
        assert len(steps) == len(drawn)
        assert not any(chart["missing"] for chart in drawn)
        if instrument.moment:
            assert 1 < len(steps) <= 5
            assert (steps[0], steps[-1]) == (0, 39)
            assert [chart["step"] for chart in drawn] == steps
        else:
            assert steps == [None]
            expected = chart_json(instrument.chart(runs[0], View(points=50)))
            assert drawn == json.loads(json.dumps([expected]))


def test_holds_conspicuous_layers(runs: list[Run], dist: Path) -> None:
    data = data_of(report(runs[:1], dist=dist, moments=2, layers=2))
    layers = [layer["name"] for layer in data["layers"]["run1"]["layers"]]
    scoped = data["scoped"]["run1"]
    assert list(scoped) == layers[:2]
    layered = {name for name, instrument in all_instruments().items() if instrument.layered}
    for scope, charts in scoped.items():
        assert set(charts) == layered
        assert {chart["scope"] for chart in charts.values()} == {scope}


def test_several_runs_with_odd_names_and_numbers(runs: list[Run], dist: Path) -> None:
    page = Page(report(runs, dist=dist, moments=2, layers=1))
    data = page.data()
    assert isinstance(data, dict)
    assert [run["name"] for run in data["runs"]] == ["plain", EVIL]
    assert set(data["charts"]) == {"run1", "run2"}
    assert "img" not in [tag for tag, _ in page.elements]
    assert all(address.startswith("data:") for address in page.addresses())


def test_says_nothing_of_where_the_runs_were(runs: list[Run], dist: Path) -> None:
    assert str(runs[0].path.parent) not in report(runs, dist=dist, moments=2, layers=1)


def test_run_without_anything(tmp_path: Path, dist: Path) -> None:
    Writer(tmp_path / "empty", {}).close()
    data = data_of(report([Run(tmp_path / "empty")], dist=dist))
    charts = data["charts"]["run1"]
    assert all(len(one["charts"]) == 1 and one["charts"][0]["missing"] for one in charts.values())


def test_numbers_are_read_once(runs: list[Run], dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def spy(db: sqlite3.Connection, series: Sequence[int], since: int) -> list[Points]:
        asked.extend(series)
        return read_numbers(db, series, since)

    monkeypatch.setattr("cockpit.store.run.read_numbers", spy)
    report(runs[:1], dist=dist, moments=3, layers=2)
    with closing(sqlite3.connect(runs[0].path / "run.db")) as db:
        numbers = {one for (one,) in db.execute("SELECT id FROM series WHERE kind = 'number'")}
    found = [one for one in asked if one in numbers]
    assert found
    assert len(found) == len(set(found))


def test_command(runs: list[Run], dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cockpit.render.single_page.front_end", lambda: dist)
        target, paths = tmp_path / "out.html", [str(run.path) for run in runs]
        assert main(["export", *paths, "--html", "--moments", "2", "-o", str(target), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["bytes"] == target.stat().st_size
        assert len(data_of(target.read_text(encoding="utf-8"))["runs"]) == 2
        assert main(["export", paths[0], "--format", "html", "--moments", "1"]) == 0
        assert len(data_of(capsys.readouterr().out)["runs"]) == 1
    assert main(["export", *paths, "-o", str(tmp_path / "x.csv")]) == 2
    assert "one run" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


def test_command_without_front_end(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cockpit.render.single_page.front_end", lambda: tmp_path)
        assert main(["export", str(runs[0].path), "--html", "--moments", "1", "-o", str(tmp_path / "o")]) == 2
    assert "make web" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with pytest.raises(CockpitError, match="not built"):
        report(runs[:1], dist=tmp_path, moments=1, layers=0)


@pytest.mark.skipif(not (front_end() / "index.html").is_file(), reason="the front end is not built: make web")
def test_real_front_end(runs: list[Run]) -> None:
    data = data_of(report(runs[:1], moments=2, layers=1))
    assert len(data["charts"]["run1"]) == len(all_instruments())
