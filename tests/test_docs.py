"""The docs say everything that there is: quantities, settings, statuses, commands, pages."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

import pytest

import cockpit
from cockpit.cli import main
from cockpit.engine.coverage.coverage import Way
from cockpit.presets import PRESETS
from cockpit.registry import make_quantity, quantity_classes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, page: str = "docs/quantities.md") -> str:
    """The section of a quantity, or of a command."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text(page), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no section {name}"
    return found.group(1)


@pytest.mark.parametrize("name", sorted(quantity_classes()))
def test_quantity_has_its_section(name: str) -> None:
    page = section(name)
    for part in ("Formula", "Meaning", "Edge cases", "Cost"):
        assert f"- **{part}**:" in page
    quantity = make_quantity(name)
    for setting in fields(quantity):
        if setting.name not in ("when", "label"):
            assert f"`{setting.name}` = {getattr(quantity, setting.name)!r}" in page


@pytest.mark.parametrize("name", sorted(quantity_classes()))
def test_statuses_of_a_quantity_are_explained(name: str) -> None:
    source = Path(importlib.import_module(f"cockpit.quantities.{name}").__file__ or "").read_text()
    for word in re.findall(r'"([a-z]+(?:_[a-z0-9]+)*): ', source):
        assert f"`{word}`" in section(name), f"{name}: {word}"


@pytest.mark.parametrize("name", sorted(quantity_classes()))
def test_quantity_is_in_the_readme(name: str) -> None:
    assert f"| `{name}` |" in text("README.md")


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_configurations_are_listed(preset: str) -> None:
    row = re.search(rf"^\| `{preset}` \| (.*) \|$", text("docs/quantities.md"), re.MULTILINE)
    assert row
    smaller = {"economy": (), "business": PRESETS["economy"], "full": PRESETS["business"]}[preset]
    assert set(re.findall(r"`(\w+)`", row.group(1))) == set(PRESETS[preset]) - set(smaller)


def test_every_way_is_explained() -> None:
    for way in Way:
        assert f"| `{way.value}` |" in text("docs/coverage.md")


def test_every_page_is_in_the_menu() -> None:
    listed = set(re.findall(r"\S+\.md", text("mkdocs.yml")))
    assert listed == {page.name for page in DOCS.glob("*.md")}
    assert listed - {"index.md"} == set(
        re.findall(r"^\| \[[^]]+\]\((\S+\.md)\)", text("docs/index.md"), re.MULTILINE)
    )


@pytest.mark.parametrize("verb", ["list", "show", "plot", "export", "import"])
def test_options_of_a_command_are_in_the_docs(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    main([verb, "--help"])
    options = set(re.findall(r"(--[a-z][a-z-]*)", capsys.readouterr().out)) - {"--help", "--output"}
    assert "--json" in options
    assert options <= set(re.findall(r"--[a-z][a-z-]*", section(f"cockpit {verb}", "docs/cli.md")))


def test_variables_are_in_the_docs() -> None:
    sources = (ROOT / "src" / "cockpit").rglob("*.py")
    named = {
        name for path in sources for name in re.findall(r"COCKPIT_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert "COCKPIT_LOGS" in named
    assert named <= set(re.findall(r"`(COCKPIT_[A-Z_]+)`", section("Variables", "docs/cli.md")))


def test_pictures_are_small() -> None:
    sizes = {picture.name: picture.stat().st_size for picture in (DOCS / "images").iterdir()}
    assert sizes
    assert max(sizes.values()) < 250_000, sizes


def test_every_target_says_what_it_does() -> None:
    makefile = text("Makefile")
    for target in re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split():  # type: ignore[union-attr]
        assert re.search(rf"^{target}:.* ## \S", makefile, re.MULTILINE), target


def test_docstrings_that_can_be_run_are_right() -> None:
    tried = 0
    for info in pkgutil.walk_packages(cockpit.__path__, "cockpit."):
        if not info.name.endswith("__main__"):
            tried += doctest.testmod(importlib.import_module(info.name), raise_on_error=True).attempted
    assert tried >= 6
