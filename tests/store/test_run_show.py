"""Run.show: below the cell of a notebook, else in the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cockpit.store.run import Run
from cockpit.store.writer import Writer


@pytest.fixture
def run(tmp_path: Path) -> Run:
    Writer(tmp_path / "run", {}).close()
    return Run(tmp_path / "run")


def test_in_the_browser(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    web: Any = ModuleType("cockpit.web")
    announced: list[Any] = []
    web.serve_in_background = lambda paths, **options: (paths, options)
    web.announce = announced.append
    monkeypatch.setitem(sys.modules, "cockpit.web", web)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert run.show(port=0) == ([run.path], {"port": 0})
    assert announced == [([run.path], {"port": 0})]


def test_in_a_notebook(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setitem(
        sys.modules,
        "IPython",
        SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=True)),  # type: ignore[arg-type]
    )
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))  # type: ignore[arg-type]
    assert run.show() is None
    assert shown == [run]
