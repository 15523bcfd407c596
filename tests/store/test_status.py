"""Statuses: codes and words say the same as a list of texts, in memory and in the file."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.errors import CockpitError
from cockpit.store.status import Status, Texts, unpack_status

texts = st.lists(st.sampled_from(["ok", "ok", "flat", "concave: no minimum", "ünïcode"]), max_size=60)


def status(found: list[str]) -> Status:
    return Status.of(len(found), dict(enumerate(found)))


def listed(found: Status, count: int) -> list[str]:
    return list(Texts(found, count))


@given(texts)
def test_what_is_packed_is_unpacked(found: list[str]) -> None:
    packed = status(found).packed()
    assert (packed is None) == (set(found) <= {"ok"})
    assert listed(unpack_status(packed, len(found)), len(found)) == found


@given(st.lists(texts, min_size=1, max_size=5))
def test_parts_are_joined(parts: list[list[str]]) -> None:
    whole = [text for part in parts for text in part]
    assert listed(Status.join([(status(part), len(part)) for part in parts]), len(whole)) == whole


@given(texts, st.data())
def test_some_are_taken(found: list[str], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(found) - 1)) if found else st.just([])
    kept = np.array(data.draw(places), dtype=np.int64)
    assert listed(status(found).take(kept), len(kept)) == [found[k] for k in kept]
    assert all(status(found).at(k) == text for k, text in enumerate(found))


def test_neighbours_are_stored_as_a_pair() -> None:
    found = status(["a"] * 500 + ["ok", "a", "ok", "a", "a", "b"]).packed()
    assert json.loads(found or "") == {"a": [[0, 499], 501, 503, 504], "b": [505]}


def test_texts_are_like_a_list() -> None:
    found = Texts(status(["ok", "a", "b"]), 3)
    assert found == ["ok", "a", "b"]
    assert found != ["ok", "a", "a"]
    assert found != 3
    assert (found[0], found[-1], found[1:], len(found), "b" in found) == ("ok", "b", ["a", "b"], 3, True)
    assert repr(found) == "['ok', 'a', 'b']"
    assert Texts(Status(), 2) == ["ok", "ok"]
    assert (found[::-1], found[5:], len(found[:2])) == (["b", "a", "ok"], [], 2)


@given(texts)
def test_statuses_are_counted(found: list[str]) -> None:
    assert Texts.of(found).counts() == Counter(found)
    assert Texts.of(found)[2:].counts() == Counter(found[2:])
    assert Texts.of(Texts.of(found)) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a" : [ 0, [2, 3] ],\n "b": [1]}', ["a", "b", "a", "a"]),
        ('{"[1,2] \\"x\\": [3]": [1]}', ["ok", '[1,2] "x": [3]', "ok", "ok"]),
        ('{"a":[],"b":[[0,0]]}', ["b", "ok", "ok", "ok"]),
        ("{}", ["ok"] * 4),
    ],
)
def test_any_json_that_says_the_same(text: str, expected: list[str]) -> None:
    assert listed(unpack_status(text, 4), 4) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[4]}',
        '{"a":[[0,4]]}',
        '{"a":[[0',
        '{"a":[x]}',
        '{"a":[-1]}',
        '{"a":[[0,3],[0,3],[0,3]]}',
        '{"a":[1e9]}',
    ],
)
def test_damaged_statuses_are_refused(text: str) -> None:
    with pytest.raises(CockpitError, match="damaged"):
        unpack_status(text, 4)
