"""Quantities by name: the folder, plugins behind entry points, and helpful errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cockpit import Cockpit, NormTest, registry
from cockpit.engine.needs import Known
from cockpit.errors import CockpitError
from cockpit.presets import PRESETS
from cockpit.quantities.quantity import Observation, Quantity
from cockpit.registry import make_preset, make_quantity, quantity_classes
from session.loops import net, plain, sgd, trained


@dataclass(frozen=True, eq=False)
class WorstLoss(Quantity):
    """The largest loss of the batch, from somebody else's package."""

    needs = (Known.LOSSES,)

    def compute(self, o: Observation) -> float:
        return float(o.losses.max())


class Point:
    """An entry point as importlib.metadata hands it out."""

    def __init__(self, name: str, target: type[Quantity] | Exception) -> None:
        self.name, self.target = name, target

    def load(self) -> type[Quantity]:
        if isinstance(self.target, Exception):
            raise self.target
        return self.target


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Point]]:
    """A list of entry points that can be filled; the registry is as before afterwards."""
    points: list[Point] = []
    asked: list[str] = []

    def entry_points(*, group: str) -> list[Point]:
        asked.append(group)
        return points

    monkeypatch.setattr(registry, "entry_points", entry_points)
    quantity_classes.cache_clear()
    yield points
    assert set(asked) <= {"cockpit.quantities"}
    quantity_classes.cache_clear()


@pytest.mark.parametrize("name", ["norm_test", "NormTest"])
def test_a_quantity_by_name(name: str) -> None:
    assert type(make_quantity(name)) is NormTest


@pytest.mark.parametrize("name", sorted(quantity_classes()))
def test_every_quantity_has_both_names(name: str) -> None:
    cls = quantity_classes()[name]
    assert type(make_quantity(name)) is type(make_quantity(cls.__name__)) is cls


def test_the_folder_is_read_once() -> None:
    assert quantity_classes() is quantity_classes()


@pytest.mark.parametrize(
    ("name", "hint"), [("norm_tset", "norm_test"), ("GradNrom", "grad_norm"), ("hist1d", "grad_hist1d")]
)
def test_a_wrong_name_is_told_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(CockpitError, match=rf"no quantity '{name}'. Did you mean '{hint}'\? Known: alpha, "):
        make_quantity(name)


def test_a_name_that_is_near_nothing_gets_the_list() -> None:
    with pytest.raises(CockpitError) as caught:
        make_quantity("xyzzy")
    assert "Did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in quantity_classes())


@pytest.mark.parametrize(
    "helper", ["noise", "bins", "norms", "sgd", "quantity", "curvature_choice", "Quantity"]
)
def test_files_of_the_folder_that_hold_no_quantity(helper: str) -> None:
    with pytest.raises(CockpitError):
        make_quantity(helper)


@pytest.mark.parametrize("name", list(PRESETS))
def test_configurations(name: str) -> None:
    made = make_preset(name)
    assert tuple(q.name for q in made) == PRESETS[name]
    assert all(q.when(t) for q in made for t in range(3))


def test_each_configuration_contains_the_one_before() -> None:
    assert list(PRESETS) == ["economy", "business", "full"]
    economy, business, full = (set(names) for names in PRESETS.values())
    assert economy < business < full <= set(quantity_classes())
    assert [len(names) for names in PRESETS.values()] == [9, 11, 13]


def test_an_unknown_configuration() -> None:
    with pytest.raises(
        CockpitError, match="no configuration 'luxury'; choose one of economy, business, full"
    ):
        make_preset("luxury")


def test_a_plugin_is_found_by_its_entry_point(plugins: list[Point], tmp_path: Path) -> None:
    assert "worst_loss" not in quantity_classes()
    plugins.append(Point("worst_loss", WorstLoss))
    quantity_classes.cache_clear()
    assert quantity_classes()["worst_loss"] is WorstLoss
    assert set(quantity_classes()) > {"worst_loss", "norm_test"}
    found = trained(tmp_path, plain, 2, quantities=["WorstLoss", "loss"])
    for t in range(2):
        assert found[t, "worst_loss", ""][0] > found[t, "loss", ""][0]
    with pytest.raises(CockpitError, match="Did you mean 'worst_loss'"):
        make_quantity("worst_los")


def test_a_plugin_may_replace_a_built_in(plugins: list[Point]) -> None:
    plugins.append(Point("loss", WorstLoss))
    quantity_classes.cache_clear()
    assert type(make_quantity("loss")) is WorstLoss


def test_a_broken_plugin_does_not_take_the_others_with_it(plugins: list[Point], tmp_path: Path) -> None:
    """Somebody else's package that cannot be imported is no reason not to train."""
    plugins.append(Point("broken", ImportError("no module named torchvision")))
    plugins.append(Point("worst_loss", WorstLoss))
    quantity_classes.cache_clear()
    model = net()
    with Cockpit(model, sgd(model), quantities=["loss", "worst_loss"], run=tmp_path) as cockpit:
        assert [q.name for q in cockpit.quantities] == ["loss", "worst_loss"]
