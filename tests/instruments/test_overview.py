"""The card and the page of a run, as the interface promises them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cockpit.instruments.layers import layer_tree
from cockpit.instruments.overview import EVENTS, run_card, run_page
from cockpit.instruments.screens import SCREENS
from cockpit.instruments.shelf import all_instruments
from cockpit.store.record import Column, Event
from cockpit.store.run import Run
from cockpit.store.writer import Writer

CARD = {
    "id", "name", "status", "started", "ended", "config", "model", "optimizer", "device", "steps", "last_step",
    "sequence", "hyperparameters", "loss", "overhead", "broken",
}  # fmt: skip
PAGE = {"parameters", "quantities", "versions", "events", "findings", "instruments", "screens"}


def test_card(run: Run) -> None:
    card = run_card(run, "abc")
    assert set(card) == CARD
    assert (card["id"], card["name"], card["status"]) == ("abc", "healthy", "finished")
    assert (card["steps"], card["last_step"], card["sequence"]) == (120, 119, run.sequence)
    assert card["loss"] == float(run.series("loss").values[-1])
    assert card["hyperparameters"]["momentum"] == 0.0
    assert card["overhead"] == 0.043
    assert card["started"] < card["ended"]


def test_page(run: Run) -> None:
    page = run_page(run, "abc")
    assert set(page) == CARD | PAGE
    assert page["parameters"][0] == {
        "name": "embed.weight",
        "shape": [16, 16],
        "way": "formula",
        "reason": "",
    }
    assert page["quantities"][0]["settings"]["when"] == "every(1)"
    assert {one["name"] for one in page["instruments"]} == set(all_instruments())
    assert all(one["available"] for one in page["instruments"])
    assert [screen["name"] for screen in page["screens"]] == [screen.name for screen in SCREENS]
    assert page["screens"][0]["rows"][0][0] == {
        "title": "Step size",
        "instruments": ["alpha_gauge", "distance_gauge", "grad_norm_gauge"],
        "wide": 1,
    }
    json.dumps(page, allow_nan=False)


def test_what_is_available(bare: Run) -> None:
    found = {one["name"] for one in run_page(bare, "x")["instruments"] if one["available"]}
    assert found == {"hyperparameter_gauge", "performance_gauge"}


def test_a_run_that_has_just_begun(empty: Run) -> None:
    page = run_page(empty, "x")
    assert (page["steps"], page["last_step"], page["loss"], page["overhead"]) == (0, None, None, None)
    assert page["parameters"] == page["events"] == page["quantities"] == []
    json.dumps(page, allow_nan=False)


def test_numbers_that_json_cannot_say(broken: Run) -> None:
    page = run_page(broken, "x")
    assert page["loss"] is None
    json.dumps(page, allow_nan=False)
    assert page["events"] == [{"step": 36, "kind": "nonfinite", "text": "the loss is NaN", "scope": ""}]


def test_groups_and_strange_settings(tmp_path: Path) -> None:
    groups = [
        {"lr": float("inf"), "betas": [0.9, 0.99], "foreach": None, "eps": 1e-8},
        {"lr": 0.2, "eps": 1e-8},
    ]
    with Writer(tmp_path, {"hyperparameters": groups, "overhead": float("nan")}):
        pass
    card = run_card(Run(tmp_path), "x")
    assert card["hyperparameters"] == {
        "lr": None,
        "betas": "0.9, 0.99",
        "eps": 1e-8,
        "lr (group 1)": 0.2,
    }
    assert card["overhead"] is None


def test_the_last_events(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.write([Column(0, "loss", 1.0), Column(9000, "grad_norm", 1.0)])
        for step in range(EVENTS + 5):
            writer.event(Event(step, "step_skipped", "no"))
    page = run_page(Run(tmp_path), "x")
    assert [page["events"][0]["step"], len(page["events"])] == [5, EVENTS]
    assert page["loss"] == 1.0  # long before the last step


def test_reading_needs_no_torch(run: Run) -> None:
    code = (
        "import sys; from cockpit.store.run import Run; from cockpit.instruments.overview import run_page;"
        "from cockpit.instruments.shelf import all_instruments; from cockpit.instruments.layers import layer_tree;"
        "import cockpit.testing.runs; run = Run(sys.argv[1]); run_page(run, 'x'); layer_tree(run);"
        "[one.chart(run) for one in all_instruments().values()]; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
def test_a_real_run(tmp_path: Path) -> None:
    """The demo itself, watched by every instrument."""
    command = [
        sys.executable,
        "-m",
        "cockpit.demo",
        "--steps",
        "12",
        "--quiet",
        "--run",
        str(tmp_path / "demo"),
    ]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    run = Run(tmp_path / "demo")
    auxiliary = {"mean_gsnr_gauge", "cabs_gauge", "early_stopping_gauge"}
    for name, one in all_instruments().items():
        assert bool(one.chart(run).missing) == (name in auxiliary), name
    json.dumps(run_page(run, "x"), allow_nan=False)


DAMAGED: list[Any] = [
    {"a": [1]},
    [{"b": 2}],
    "text",
    3,
    None,
    True,
    [[1, [2]]],
    {"a": {"b": {"c": 1}}},
    float("nan"),
]


@pytest.mark.parametrize("value", DAMAGED)
def test_a_damaged_meta_reaches_the_page_as_texts_and_numbers(value: Any, tmp_path: Path) -> None:
    keys = ("config", "model", "optimizer", "device", "parameters", "coverage", "quantities", "versions")
    with Writer(tmp_path) as writer:
        writer.set_meta(dict.fromkeys((*keys, "hyperparameters", "overhead", "started"), value))
    page = run_page(Run(tmp_path), "x")
    assert all(isinstance(page[key], str) for key in keys[:4])
    assert all(isinstance(page[key], float | None) for key in ("started", "ended", "overhead"))
    assert all(isinstance(one, str | int | float | None) for one in page["hyperparameters"].values())
    assert all(isinstance(one, str) for one in page["versions"].values())
    for one in page["parameters"]:
        assert all(isinstance(one[key], str) for key in ("name", "way", "reason"))
        assert all(isinstance(length, int) for length in one["shape"])
    for one in page["quantities"]:
        assert isinstance(one["name"], str)
        assert all(isinstance(text, str) for text in one["settings"].values())
    json.dumps(page, allow_nan=False)
    assert layer_tree(Run(tmp_path)) == [] or isinstance(value, dict)
