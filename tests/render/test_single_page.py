"""The front end in one piece: nothing outside is needed, nothing inside gets out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.errors import CockpitError
from cockpit.render.single_page import embedded, front_end, single_page
from render.pages import Page, built

EVIL = "</script><img src=x onerror=alert(1)><!--"


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    return built(tmp_path / "dist")


def test_everything_is_inside(dist: Path) -> None:
    page = Page(single_page({"runs": [1]}, dist, title="a < b"))
    assert all(address.startswith("data:") for address in page.addresses())
    assert [tag for tag, _ in page.elements if tag == "link"] == ["link"]  # the icon
    assert page.data() == {"runs": [1]}
    ((attributes, code),) = [one for one in page.scripts() if one[0].get("type") == "module"]
    assert "src" not in attributes
    assert code == r'const a="<\/script>\x3C!--",b=/\\1<\/SCRIPT>/,c="<script>";document.title=a+b+c+"é";'
    (style,) = [text for tag, text in page.texts if tag == "style"]
    assert style == r"a::after{content:'<\/style><b>'}"
    assert ("title", "a < b") in page.texts
    assert ("div", {"id": "app"}) in page.elements


def test_policy_lets_nothing_in_or_out(dist: Path) -> None:
    page = Page(single_page({}, dist))
    ((_, meta), *_) = [one for one in page.elements if one[0] == "meta"]
    assert (
        meta["http-equiv"] == "Content-Security-Policy"
    )  # the first of all: it holds for what comes after it
    rules = dict(rule.split(" ", 1) for rule in (meta["content"] or "").split("; "))
    (code,) = [text for attributes, text in page.scripts() if attributes.get("type") == "module"]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"  # so no connection, frame, worker or font from anywhere
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data: blob:"
    assert "connect-src" not in rules
    assert "http" not in (meta["content"] or "")


def test_compact_is_said_to_the_page(dist: Path) -> None:
    assert Page(single_page({}, dist, compact=True)).elements[0] == (
        "html",
        {"data-compact": None, "lang": "en"},
    )
    assert "data-compact" not in single_page({}, dist)


def test_texts_stay_texts(dist: Path) -> None:
    page = Page(single_page({"name": EVIL}, dist, title=EVIL))
    assert page.data() == {"name": EVIL}
    assert "img" not in [tag for tag, _ in page.elements]


@given(st.recursive(st.none() | st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_json_is_the_same_without_a_tag(value: object) -> None:
    assert json.loads(embedded(value)) == value
    assert "<" not in embedded(value)


def test_numbers_that_are_not_finite_are_null() -> None:
    assert embedded({"a": [float("nan"), 1.5], "b": (float("-inf"),)}) == '{"a":[null,1.5],"b":[null]}'


def test_front_end_that_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(CockpitError, match=r"not built.*make web"):
        single_page({}, tmp_path)


@pytest.mark.skipif(not (front_end() / "index.html").is_file(), reason="the front end is not built: make web")
def test_real_front_end() -> None:
    page = Page(single_page({"runs": []}))
    assert all(address.startswith("data:") for address in page.addresses())
    assert len([one for one in page.scripts() if one[0].get("type") == "module"]) == 1
    assert [tag for tag, _ in page.elements].count("style") == 1
    (code,) = [text for attributes, text in page.scripts() if attributes.get("type") == "module"]
    assert not re.search(r"\bimport\s*\(|\bimport\s*[\"'{]", code)  # nothing is loaded later
