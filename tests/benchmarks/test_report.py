"""The docs show what the committed results say, and nothing else."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environments import ROOT
from benchmarks.report import NOTHING, report, write_report
from benchmarks.summary import summary

PAGES = "<!-- generated: {} -->\nold\n<!-- end -->\nkept\n"


def row(environment: str, name: str, ratio: float, interval: int = 1, **more: Any) -> dict[str, Any]:
    spread = {"median": ratio, "low": ratio, "high": ratio}
    facts = {"wall_ms": ratio, "wall": spread, "process_ms": 2 * ratio, "process": spread, "how": "measured"}
    return {"environment": environment, "name": name, "interval": interval, **facts, **more}


@pytest.fixture
def results() -> dict[str, Any]:
    rows = [
        row("cockpit", "untracked", 1.0, peak_ratio=1.0),
        row("cockpit", "economy", 1.5, peak_ratio=2.0),
        row("cockpit", "economy", 1.1, 16, how="composed of interval 1 and idle steps"),
        row("original", "economy", 15.0, peak_ratio=20.0),
        row("cockpit", "hess_max_ev", 4.0, gaps=["hess_max_ev: no_double_backward"]),
        row("cockpit", "norm_test", 1.25),
        row("cockpit", "loss", 1.0),
        row("cockpit", "alpha", 1.5),
        row("original", "NormTest", 5.0),
        {
            "environment": "opacus",
            "name": "ghost_norms",
            "interval": 1,
            "reason": "not installed on this machine",
        },
    ]
    machine = {"device": "CPU", "processor": "Some processor", "clock": "processor time of one thread"}
    machine |= {"memory": "m", "torch": "2.13.0", "python": "3.11", "cockpit": "0.1.0", "revision": "abc"}
    machine |= {"date": "2026-01-02", "versions": {"opacus": "1.6"}}
    problem = {"weights": 7850, "batch": 128, "data": "mnist, real", "rows": rows}
    skipped = {"skipped": "too slow"}
    return {
        "machine": machine,
        "options": {"intervals": [1, 16]},
        "problems": {"mnist_logreg": problem, "gpt_124m": skipped},
    }


@pytest.fixture
def checkout(tmp_path: Path, results: dict[str, Any]) -> tuple[Path, Path]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGES.format("costs"))
    (tmp_path / "docs" / "benchmarks.md").write_text(PAGES.format("results"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cpu.json").write_text(json.dumps(results))
    return tmp_path, tmp_path / "results"


def test_committed_docs_are_up_to_date() -> None:
    for name, text in report().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run `python -m benchmarks report`"


def test_every_plot_is_of_the_committed_results() -> None:
    generated = {name for name in report() if name.endswith(".svg")}
    assert {f"docs/assets/{path.name}" for path in (ROOT / "docs" / "assets").glob("*.svg")} == generated


def test_tables(checkout: tuple[Path, Path]) -> None:
    write_report(*checkout)
    readme = (checkout[0] / "README.md").read_text()
    assert "| economy | ×1.50, ×2.00 |" in readme
    assert "| original economy | ×15.0, ×20.0 |" in readme
    assert "old" not in readme
    assert readme.endswith("kept\n")
    page = (checkout[0] / "docs" / "benchmarks.md").read_text()
    assert "| `mnist_logreg` economy | ×1.50 | ~×1.10 |" in page
    assert "| `norm_test` | ×1.25 / ×5.00 |" in page
    assert "| `hess_max_ev` | ×4.00* |" in page
    assert "measured with gaps: hess_max_ev: no_double_backward" in page
    assert "| Opacus ghost_norms | cannot run |" in page
    assert "opacus ghost_norms (mnist_logreg): `not installed on this machine`" in page
    assert "| `gpt_124m` |  |  | too slow |  |" in page
    assert "| `mnist_logreg` | 7,850 | 128 | mnist, real | 2 |" in page
    assert "Some processor" in page
    assert "2026-01-02" in page


def test_writing_again_changes_nothing(checkout: tuple[Path, Path]) -> None:
    assert len(write_report(*checkout)) == 4
    assert write_report(*checkout) == []


def test_plots_are_pictures_with_their_curves(checkout: tuple[Path, Path]) -> None:
    write_report(*checkout)
    intervals, quantities = (
        ElementTree.parse(checkout[0] / "docs" / "assets" / f"cpu-mnist_logreg-{kind}.svg").getroot()
        for kind in ("intervals", "quantities")
    )
    space = "{http://www.w3.org/2000/svg}"
    curves = [line for line in intervals.iter(f"{space}polyline") if line.get("stroke-width") == "2"]
    assert len(curves) == 1
    assert len(curves[0].get("points", "").split()) == 2
    assert len(list(quantities.iter(f"{space}rect"))) == 5


def test_without_results_the_docs_say_so(checkout: tuple[Path, Path]) -> None:
    (checkout[1] / "cpu.json").unlink()
    assert NOTHING in report(*checkout)["README.md"]


def test_compact_table(results: dict[str, Any]) -> None:
    lines = summary(results).splitlines()
    cells = {line.split("  ")[0]: line.split()[-1] for line in lines if "×" in line}
    assert cells["cockpit/economy"] == "2.00m"
    assert cells["cockpit/economy every 16"] == "×1.10"
    assert cells["cockpit/hess_max_ev"] == "×4.00*"
    assert any(line.split() == ["untracked,", "ms", "2"] for line in lines)
    assert "mnist_logreg opacus/ghost_norms: not installed on this machine" in lines
    assert "gpt_124m: too slow" in lines
