"""The page of the docs is made of the docstrings, and is up to date."""

from __future__ import annotations

from pathlib import Path

from cockpit.instruments.handbook import handbook
from cockpit.instruments.shelf import all_instruments

PAGE = Path(__file__).parents[2] / "docs" / "instruments.md"


def test_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == handbook(), "python -m cockpit.instruments.handbook > docs/instruments.md"


def test_every_instrument_has_a_section() -> None:
    for name, one in all_instruments().items():
        assert f"### `{name}`: {one.title}\n" in handbook()
