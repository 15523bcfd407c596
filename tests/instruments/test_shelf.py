from __future__ import annotations

from collections.abc import Iterator

import pytest

from cockpit.errors import CockpitError
from cockpit.instruments import shelf
from cockpit.instruments.chart import Chart, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.screens import SCREENS


class Foreign(Instrument):
    """Something of a plugin's."""

    title, question, reads, group = "Foreign", "Who goes there?", ("loss",), "auxiliary"

    def draw(self, run: Source, view: View) -> Chart:
        return self.made()


class Point:
    name = "foreign"

    def load(self) -> type[Instrument]:
        return Foreign


class Broken(Point):
    name = "broken"

    def load(self) -> type[Instrument]:
        raise ImportError("no such module")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Point]]:
    points: list[Point] = []
    monkeypatch.setattr(shelf, "entry_points", lambda group: points)
    for cached in (shelf.all_instruments, shelf.all_screens):
        cached.cache_clear()
    yield points
    for cached in (shelf.all_instruments, shelf.all_screens):
        cached.cache_clear()


def test_an_instrument_of_a_plugin_gets_a_place(plugins: list[Point]) -> None:
    plugins.append(Point())
    assert isinstance(shelf.instrument("foreign"), Foreign)
    auxiliary = next(screen for screen in shelf.all_screens() if screen.name == "secondary")
    assert auxiliary.rows[-1][0].instruments == ("foreign",)


def test_ours_have_their_places(plugins: list[Point]) -> None:
    assert shelf.all_screens() == SCREENS


def test_a_broken_plugin_is_left_out(plugins: list[Point]) -> None:
    plugins += [Broken(), Point()]
    with pytest.warns(UserWarning, match="'broken' could not be loaded"):
        found = shelf.all_instruments()
    assert "foreign" in found
    assert "broken" not in found


def test_unknown_names(plugins: list[Point]) -> None:
    with pytest.raises(CockpitError, match=r"no instrument 'x'.*alpha_gauge"):
        shelf.instrument("x")
