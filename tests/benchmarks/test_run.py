"""A whole run on one small problem: the file of results, and what is skipped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks import run as run_module
from benchmarks.command import main
from benchmarks.contest import Contest, Rules
from benchmarks.environments import Environment
from benchmarks.run import Plan
from cockpit.bench.rounds import Pace


def test_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    out = tmp_path / "results.json"
    arguments = ["--problems", "quadratic_deep", "resnet50", "--contestants", "cockpit/loss", "pyhessian"]
    arguments += ["--rounds", "2", "--budget", "0.1", "--batch", "4", "--device", "cpu", "--no-memory"]
    assert main([*arguments, "--no-install", "--intervals", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["machine"]["device"] == "CPU"
    assert results["machine"]["revision"]
    assert results["machine"]["versions"]["torch"]
    assert results["options"]["rounds"] == 2
    found = results["problems"]["quadratic_deep"]
    assert (found["batch"], found["weights"], found["data"]) == (4, 100, "its own definition")
    rows = {(row["environment"], row["name"]): row for row in found["rows"]}
    assert rows["cockpit", "untracked"]["process"]["median"] == 1
    assert rows["cockpit", "loss"]["process"]["median"] > 0
    assert rows["pyhessian", "trace"]["reason"] == "not installed on this machine"
    assert "too slow" in results["problems"]["resnet50"]["skipped"]
    shown = capsys.readouterr().out
    assert "cockpit/loss" in shown
    assert str(out) in shown


def test_what_is_broken_off_keeps_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Contest, "_memory", broken_off)
    out = tmp_path / "results.json"
    arguments = ["--problems", "quadratic_deep", "--contestants", "cockpit/loss", "--rounds", "1"]
    arguments += ["--budget", "0.1", "--batch", "4", "--device", "cpu", "--no-install", "--intervals"]
    with pytest.raises(KeyboardInterrupt):
        main([*arguments, "--out", str(out)])
    rows = json.loads(out.read_text())["problems"]["quadratic_deep"]["rows"]
    assert [row["name"] for row in rows if "process" in row] == ["untracked", "loss"]


def test_who_dies_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of its environment are measured by another worker."""
    fake = Path(__file__).with_name("fake_worker.py")
    peer = Environment("peer", singles=("economy", "deadly", "norms"))
    monkeypatch.setattr(run_module, "ALL", [peer])
    monkeypatch.setattr(run_module, "command", lambda *_: ([sys.executable, str(fake)], os.environ))
    rules = Rules(Pace(2, budget=0.1), intervals=(), memory=False)
    plan = Plan(["quadratic_deep"], [], "cpu", rules)
    workers = run_module.Workers(plan, print)
    try:
        *_, found = run_module._problem("quadratic_deep", plan, workers, print)
    finally:
        workers.close()
    rows = {row["name"]: row for row in found["rows"]}
    assert "ended with status 3: out of memory" in rows["deadly"]["reason"]
    assert rows["economy"]["process"]["median"] == pytest.approx(3)
    assert rows["norms"]["process"]["median"] == pytest.approx(2)


def test_an_unknown_problem_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--problems", "mnist_mpl"]) == 2
    assert "no problem 'mnist_mpl'; there are quadratic_deep" in capsys.readouterr().err
