"""Notebooks: what a cell shows, where frames are not shown, and while a run grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.errors import CockpitError
from cockpit.render.notebook import cell, live, readings
from cockpit.render.status import Row, Status
from cockpit.store.record import Event, Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.testing.runs import fake_run
from render.pages import Page, built

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return built(tmp_path / "dist")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(fake_run(tmp_path_factory.mktemp("runs") / EVIL, steps=30, parameters=3))


def test_cell_is_a_page_in_a_sandbox(run: Run, dist: Path) -> None:
    page = Page(cell(run, dist))
    ((_, frame),) = [one for one in page.elements if one[0] == "iframe"]
    assert "allow-same-origin" not in (frame["sandbox"] or "")
    assert "allow-scripts" in (frame["sandbox"] or "")
    inner = Page(frame["srcdoc"] or "")
    assert inner.elements[0] == ("html", {"data-compact": None, "lang": "en"})
    data = inner.data()
    assert isinstance(data, dict)
    assert data["runs"][0]["name"] == EVIL
    for parsed in (page, inner):
        assert not {"img", "object", "embed"} & {tag for tag, _ in parsed.elements}
        assert all(address.startswith("data:") for address in parsed.addresses())
    # whoever takes frames out, as viewers of stored notebooks do, still has the readings
    assert "script" not in {tag for tag, _ in page.elements}
    assert len([1 for tag, _ in page.elements if tag == "tr"]) == 11


def test_cell_without_front_end(run: Run, tmp_path: Path) -> None:
    text = cell(run, tmp_path)
    assert "make web" in text
    assert "<table" in text
    assert "<iframe" not in text


def test_readings_as_a_table() -> None:
    course = np.array([0.0, 1.0, np.nan, 2.0, 3.0])
    rows = (
        Row("alpha_gauge", "Step size", "Alpha <b>", "+0.3", course, "note & more"),
        Row("trace_gauge", "Curvature", "Trace", "", np.empty(0), "Not recorded.", missing=True),
    )
    now = Status(EVIL, "running", 5, loss=0.5, rows=rows, events=(Event(3, "gap", EVIL),))
    text = readings(now)
    page = Page(text)
    said = "".join(text for _, text in page.texts)
    for words in (EVIL, "running", "step 5", "loss 0.5", "Alpha <b>", "+0.3", "note & more", "Not recorded."):
        assert words in said
    assert len([1 for tag, _ in page.elements if tag == "polyline"]) == 2  # it breaks off at the gap
    assert not {"img", "b>"} & {tag for tag, _ in page.elements}


def test_run_displays_itself(run: Run, dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    monkeypatch.setattr("cockpit.render.single_page.front_end", lambda: dist)
    shown, _ = formatters.DisplayFormatter().format(run)
    assert shown["text/plain"] == repr(run)
    assert shown["text/html"].startswith("<iframe")


class Handle:
    """What IPython gives to redraw a cell: remembers what it was given."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, shown: Any) -> None:
        self.shown.append(shown.data)

    def until(self, seen: Callable[[str], bool]) -> None:
        end = time.monotonic() + 20
        while not (self.shown and seen(self.shown[-1])):
            assert time.monotonic() < end, self.shown[-1:]
            time.sleep(0.02)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch, dist: Path) -> Handle:
    display = pytest.importorskip("IPython.display")
    found = Handle()
    monkeypatch.setattr(display, "display", lambda shown, display_id: found)
    monkeypatch.setattr("cockpit.render.single_page.front_end", lambda: dist)
    return found


def test_live_view_follows_a_run_to_its_end(tmp_path: Path, handle: Handle) -> None:
    class Cockpit:
        run = tmp_path / "run"

    view = live(Cockpit(), every=0.02)  # before anything is written
    with Writer(tmp_path / "run", {"started": time.time()}) as writer:
        for step in (0, 7):
            writer.write([Record(step, "loss", 1.0), Record(step, "grad_norm", 2.0)])
            writer.flush(10)
            handle.until(lambda text, step=step: f"step {step}" in text and "running" in text)  # type: ignore[misc]
    handle.until(lambda text: text.startswith("<iframe"))
    assert "finished" in handle.shown[-2]
    view.stop()


def test_live_view_can_be_stopped(tmp_path: Path, handle: Handle) -> None:
    with Writer(tmp_path, {}) as writer:
        view = live(Run(tmp_path), every=0.02, whole=False)
        writer.write([Record(0, "loss", 1.0)])
        handle.until(lambda text: "step 0" in text)
        view.stop()
        count = len(handle.shown)
        writer.write([Record(1, "loss", 1.0)])
        writer.flush(10)
        time.sleep(0.1)
    assert len(handle.shown) == count


def test_live_view_of_nothing() -> None:
    class Cockpit:
        run = None

    with pytest.raises(CockpitError, match="records nothing"):
        live(Cockpit())
