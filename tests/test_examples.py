"""Everything a reader may copy is run: the example programs, and the Python blocks of README and docs."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cockpit import Cockpit

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return (line, code) of every Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(example), "--steps", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "False" not in done.stdout  # what an example compares must come out equal


def test_examples_are_short() -> None:
    assert {"plain_loop", "accumulation", "amp", "ddp", "attach", "resume"} <= {e.stem for e in EXAMPLES}
    assert max(len(e.read_text().splitlines()) for e in EXAMPLES) < 100


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda path: path.stem)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them one after the other, as a reader would in one session."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    folders = re.findall(r'Run\("([^"]+)"\)', page.read_text(encoding="utf-8"))
    for folder in {*folders, "."}:  # runs that the page takes for granted
        record(tmp_path / folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in blocks(page):
        # compiled with the page's own lines, so that a failure names the place
        exec(compile("\n" * line + code, str(page), "exec"), names)
    for value in names.values():
        if isinstance(value, sqlite3.Connection):
            value.close()


def record(folder: Path) -> None:
    """Make a short run."""
    model = nn.Sequential(OrderedDict(layer1=nn.Linear(3, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, optimizer, quantities=["loss", "grad_norm", "grad_hist1d"], run=folder) as cockpit:
        cockpit.backward(model(torch.ones(4, 3)).square().mean(1))
        optimizer.step()


def test_readme_is_run() -> None:
    assert len(blocks(ROOT / "README.md")) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
