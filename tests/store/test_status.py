"""Statuses: codes and words say the same as a list of texts, in memory and in the file."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
