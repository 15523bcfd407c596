"""What the page can ask, and what it is told when something is wrong."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.instrument import Instrument
from cockpit.instruments.shelf import all_instruments
from cockpit.render.page import chart_json
from cockpit.store.record import Record
from cockpit.store.run import Run
from cockpit.store.writer import Writer
from cockpit.web import app
from cockpit.web.app import make_app
from cockpit.web.guard import Guard, Rules
from cockpit.web.library import Library
from cockpit.web.ticks import Ticks

CARD = {
    "id": str,
    "name": str,
    "status": str,
    "started": (int, float, type(None)),
    "ended": (int, float, type(None)),
    "config": str,
    "model": str,
    "optimizer": str,
    "device": str,
    "steps": int,
    "last_step": (int, type(None)),
    "sequence": int,
    "hyperparameters": dict,
    "loss": (int, float, type(None)),
    "overhead": (int, float, type(None)),
    "broken": str,
}
PAGE = {
    **CARD,
    "parameters": list,
    "quantities": list,
    "versions": dict,
    "events": list,
    "findings": list,
    "instruments": list,
    "screens": list,
}


def client_of(*paths: Path) -> TestClient:
    library = Library(paths)
    guard = Guard(make_app(library, Ticks(library.sequences)), Rules("token"))
    return TestClient(guard, "http://localhost", headers={"X-Cockpit-Token": "token"})


def ask(client: TestClient, path: str, status: int = 200, **parameters: object) -> Any:
    answer = client.get(path, params={key: str(value) for key, value in parameters.items()})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    return json.loads(answer.text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def run_id(client: TestClient, name: str = "first") -> str:
    (found,) = [card["id"] for card in ask(client, "/api/runs")["runs"] if card["name"] == name]
    return str(found)


def has_shape(found: dict[str, Any], shape: dict[str, Any]) -> bool:
    return set(found) >= set(shape) and all(isinstance(found[key], kind) for key, kind in shape.items())


def test_cards(client: TestClient, logs: Path) -> None:
    with Writer(logs / "newest") as writer:
        writer.write([Record(step, "loss", 2.0 - step) for step in range(3)])
    cards = ask(client, "/api/runs")["runs"]
    assert cards[0]["name"] == "newest"
    assert {card["name"] for card in cards} == {"newest", "first", "deep/second"}
    assert all(has_shape(card, CARD) for card in cards), cards
    newest = cards[0]
    assert (newest["steps"], newest["last_step"], newest["loss"], newest["broken"]) == (3, 2, 0.0, "")
    assert newest["sequence"] == Run(logs / "newest").sequence
    assert newest["status"] == "finished"


def test_a_card_follows_its_run(client: TestClient, logs: Path) -> None:
    with Writer(logs / "newest") as writer:
        writer.write([Record(0, "loss", 2.0)])
        writer.flush()
        card = ask(client, "/api/runs")["runs"][0]
        assert (card["status"], card["loss"]) == ("running", 2.0)
        writer.write([Record(1, "loss", 1.0)])
        writer.flush()
        card = ask(client, "/api/runs")["runs"][0]
        assert (card["status"], card["loss"], card["last_step"]) == ("running", 1.0, 1)
    assert ask(client, "/api/runs")["runs"][0]["status"] == "finished"


def test_the_page_of_a_run(client: TestClient) -> None:
    page = ask(client, f"/api/runs/{run_id(client)}")
    assert has_shape(page, PAGE)
    assert page["name"] == "first"
    assert {one["name"] for one in page["instruments"]} == set(all_instruments())
    shown = [
        name
        for screen in page["screens"]
        for row in screen["rows"]
        for part in row
        for name in part["instruments"]
    ]
    assert set(shown) <= set(all_instruments())


@pytest.mark.parametrize("name", sorted(all_instruments()))
def test_every_chart_is_that_of_its_instrument(client: TestClient, logs: Path, name: str) -> None:
    answer = ask(client, f"/api/runs/{run_id(client)}/charts/{name}", step=60, points=50)
    run = Run(logs / "first")
    assert answer["sequence"] == run.sequence
    expected = all_instruments()[name].chart(run, View(step=60, points=50))
    assert answer["chart"] == json.loads(json.dumps(chart_json(expected)))


def test_views(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[View] = []
    instrument = all_instruments()["alpha_gauge"]
    monkeypatch.setattr(type(instrument), "draw", lambda self, run, view: seen.append(view) or self.made())
    path = f"/api/runs/{run_id(client)}/charts/alpha_gauge"
    ask(client, path)
    ask(client, path, step=5, first=-2, last=90, points=77, scope="a.b")
    ask(client, path, points=10**9)
    ask(client, path, points=1)
    ask(client, path, step="", scope="", points=11)
    assert seen == [View(), View(5, -2, 90, 77, "a.b"), View(points=10_000), View(points=10), View(points=11)]


def test_what_was_drawn_is_not_drawn_again(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[View] = []
    instrument = all_instruments()["performance_gauge"]
    draw = type(instrument).draw

    def spy(self: Instrument, run: Any, view: View) -> Chart:
        drawn.append(view)
        return draw(self, run, view)

    monkeypatch.setattr(type(instrument), "draw", spy)
    with Writer(logs / "live") as writer:
        writer.write([Record(step, "loss", 1.0) for step in range(10)])
        writer.flush()
        client = client_of(logs)
        path = f"/api/runs/{run_id(client, 'live')}/charts/performance_gauge"
        first = ask(client, path)
        assert (ask(client, path), len(drawn)) == (first, 1)
        ask(client, path, points=20)
        assert len(drawn) == 2
        writer.write([Record(10, "loss", 1.0)])
        writer.flush()
        again = ask(client, path)
        assert len(drawn) == 3
        assert again["sequence"] > first["sequence"]
        assert again["chart"] != first["chart"]


def test_a_failure_is_not_kept(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/api/runs/{run_id(client)}/charts/alpha_gauge"
    with monkeypatch.context() as broken:
        broken.setattr(type(all_instruments()["alpha_gauge"]), "draw", lambda *_: 1 / 0)
        assert ask(client, path)["chart"]["missing"]
    assert not ask(client, path)["chart"]["missing"]


@pytest.mark.parametrize("name", ["step", "first", "last", "points"])
@pytest.mark.parametrize("value", ["x", "1.5", "nan", str(2**63), "-" + "9" * 40, "9" * 5000, "1;DROP"])
def test_numbers_that_are_none(client: TestClient, name: str, value: str) -> None:
    answer = ask(client, f"/api/runs/{run_id(client)}/charts/alpha_gauge", 400, **{name: value})
    assert name in answer["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/{id}/charts/nothing",
        "/api/runs/{id}/charts/__class__",
        "/api/runs/{id}/charts/..%2f..",
        "/api/runs/{id}/charts/chart",
        "/api/runs/{id}/charts/",
        "/api/runs/{id}/nothing",
        "/api/runs/{id}/",
        "/api/runs/0000000000000000",
        "/api/runs/first",
        "/api/runs/..%2ffirst",
        "/api/runs/%2e%2e",
        "/api/runs/%2fetc%2fpasswd",
        "/api/runs/{id}%00",
        "/api/runs/ä",
        "/api/runs/0000000000000000/layers",
        "/api/runs/0000000000000000/charts/alpha_gauge",
        "/api/runs//charts/alpha_gauge",
    ],
)
def test_what_is_not_there(client: TestClient, path: str) -> None:
    assert ask(client, f"http://localhost:6116{path.replace('{id}', run_id(client))}", 404)["error"]


@pytest.mark.parametrize("folder", ["../outside", "/etc", "first/run.db", "deep/second"])
def test_paths_are_no_ids(client: TestClient, logs: Path, made: Path, folder: str) -> None:
    shutil.copytree(made, logs.parent / "outside")
    for path in (folder, str(logs / folder)):
        answer = client.get("/api/runs/" + path.replace("/", "%2f"))
        assert answer.status_code == 404


def test_layers(client: TestClient, logs: Path) -> None:
    path = f"/api/runs/{run_id(client)}/layers"
    layers = ask(client, path)["layers"]
    parameters = {layer["name"] for layer in layers if layer["kind"] == "parameter"}
    assert parameters == set(Run(logs / "first").meta["parameters"])
    scores = [layer["score"] for layer in layers]
    assert scores == sorted(scores, reverse=True)
    assert ask(client, path, step=3)["layers"]
    ask(client, path, 400, step="x")


def test_sequences(client: TestClient) -> None:
    cards = ask(client, "/api/runs")["runs"]
    assert ask(client, "/api/sequences") == {"runs": {card["id"]: card["sequence"] for card in cards}}


def test_the_head_of_the_stream(client: TestClient) -> None:
    answer = client.head("/api/ticks")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-store"


def test_a_failing_instrument_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Instrument, run: object, view: View) -> None:
        raise ZeroDivisionError("<b>division</b>")

    monkeypatch.setattr(type(all_instruments()["alpha_gauge"]), "draw", fail)
    chart = ask(client, f"/api/runs/{run_id(client)}/charts/alpha_gauge", scope="s")["chart"]
    assert "ZeroDivisionError: <b>division</b>" in chart["missing"]
    assert (chart["name"], chart["plots"], chart["scope"]) == ("alpha_gauge", [], "s")


def test_broken_runs_are_shown_as_such(client: TestClient, logs: Path) -> None:
    (logs / "broken").mkdir()
    (logs / "broken" / "run.db").write_text("nothing like a database" * 50)
    id = run_id(client, "broken")
    page = ask(client, f"/api/runs/{id}")
    assert has_shape(page, PAGE)
    assert (page["status"], page["name"]) == ("unreadable", "broken")
    assert "not a run" in page["broken"]
    assert str(logs) not in page["broken"]
    ask(client, f"/api/runs/{id}/charts/alpha_gauge", 404)
    ask(client, f"/api/runs/{id}/layers", 404)
    assert id not in ask(client, "/api/sequences")["runs"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE meta SET value = 'no JSON'",
        "UPDATE meta SET value = '[[[1]]]'",
        "DROP TABLE meta",
        "DROP TABLE chunk",
        "UPDATE chunk SET data = x'00'",
        "UPDATE chunk SET count = 7",
        "UPDATE array SET data = x'00'",
        "UPDATE event SET data = '{'",
        "DELETE FROM state",
        "UPDATE state SET sequence = 'many'",
        "UPDATE series SET name = CAST(x'ff00' AS TEXT) WHERE id = 1",
    ],
)
def test_damaged_runs_harm_nobody(client: TestClient, logs: Path, statement: str) -> None:
    db = sqlite3.connect(logs / "first" / "run.db", isolation_level=None)
    db.execute(statement)
    db.close()
    cards = {card["name"]: card for card in ask(client, "/api/runs")["runs"]}
    assert cards["deep/second"]["broken"] == ""
    id = cards["first"]["id"]
    assert set(cards["first"]) >= set(CARD)
    assert set(ask(client, f"/api/runs/{id}")) >= set(PAGE)
    for path in (f"/api/runs/{id}/charts/{name}" for name in sorted(all_instruments())):
        assert client.get(path).status_code in (200, 404)
    assert client.get(f"/api/runs/{id}/layers").status_code in (200, 404, 503)
    assert len(ask(client, "/api/sequences")["runs"]) >= 1


def test_a_run_deleted_while_it_is_shown(
    client: TestClient, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = run_id(client)
    monkeypatch.setattr("cockpit.web.library.time.monotonic", lambda: 0.0)  # no search from now on
    shutil.rmtree(logs / "first")
    assert ask(client, f"/api/runs/{id}/charts/alpha_gauge", 503)["error"]
    assert ask(client, f"/api/runs/{id}")["broken"]
    assert {card["name"] for card in ask(client, "/api/runs")["runs"] if not card["broken"]} == {
        "deep/second"
    }


EVIL = "<img src=x onerror=alert(1)></script><!--\u2028'\"&"


def test_names_are_only_text(tmp_path: Path) -> None:
    """JSON that no browser takes for a page, whatever stands in it."""
    meta = {
        "model": EVIL,
        "optimizer": EVIL,
        "config": EVIL,
        "parameters": {EVIL: {"shape": [1]}},
        "hyperparameters": [{EVIL: EVIL, "lr": float("nan"), "eps": float("inf")}],
    }
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    with Writer(folder, meta) as writer:
        writer.write([Record(0, EVIL, 1.0, EVIL), Record(0, "grad_norm", 1.0, EVIL), Record(0, "loss", 1.0)])
    client = client_of(tmp_path)
    (card,) = ask(client, "/api/runs")["runs"]
    assert card["name"] == folder.name
    for path in ("", "/layers", "/charts/layer_norms", "/charts/grad_norm_gauge?scope=<script>"):
        answer = client.get(f"/api/runs/{card['id']}{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        json.loads(answer.text, parse_constant=lambda word: pytest.fail(word))


def test_long_answers_are_packed(client: TestClient) -> None:
    path = f"/api/runs/{run_id(client)}/charts/alpha_gauge"
    assert client.get(path).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get("/api/sequences").headers
    assert "content-encoding" not in client.get(path, headers={"Accept-Encoding": "identity"}).headers


def test_numbers_without_a_word_in_json() -> None:
    answer = app._json({"a": [float("inf"), (float("nan"), 1.5)], "b": "\ud800"})
    assert json.loads(bytes(answer.body)) == {"a": [None, [None, 1.5]], "b": "\ud800"}
