"""A quantity of one's own: what it may ask for, return and remember, and that it cannot end a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit import Run
from cockpit.engine.answers.table import Table
from cockpit.engine.needs import Known, Need
from cockpit.engine.statistics import Norm2
from cockpit.errors import CockpitError, Gap
from cockpit.quantities.quantity import (
    Memory,
    Observation,
    OptimizerView,
    Quantity,
    Reading,
    Readings,
    check_choice,
    reading,
)
from cockpit.session import pending
from cockpit.store.record import Histogram
from session.loops import batch, events, individual_gradients, losses_of, net, plain, trained

VIEW = OptimizerView("SGD", {}, True)


def observation(known: Mapping[Known, Any] | None = None) -> Observation:
    return Observation(0, 1, Table({}), VIEW, {}, known or {})


@dataclass(frozen=True, eq=False)
class Longest(Quantity):
    """The longest individual gradient; it counts its calls."""

    needs = (Norm2(), Known.LOSSES)
    unit = "1"

    def start(self, parameters: Mapping[str, Tensor], memory: Memory) -> None:
        memory["calls"] = 0
        memory["parameters"] = len(parameters)

    def compute(self, o: Observation) -> Reading:
        o.memory["calls"] += 1
        each = {n: v.max().sqrt() for n, v in o.statistics.by_parameter(Norm2()).items()}
        more = {"calls": float(o.memory["calls"]), "losses": {"": float(len(o.losses)), "0.bias": 7.0}}
        return Reading(o.statistics.total(Norm2()).max().sqrt(), each, "roughly: on purpose", more)


def test_a_quantity_of_ones_own(tmp_path: Path) -> None:
    found = trained(tmp_path, plain, 3, quantities=[Longest(), Longest(label="rare", when=2)])  # type: ignore[arg-type]
    model = net()
    G = individual_gradients(losses_of(model, *batch(0)), list(model.parameters()))
    assert found[0, "longest", ""][0] == pytest.approx(
        float(torch.cat([g.flatten(1) for g in G], 1).norm(dim=1).max()), rel=1e-12
    )
    assert found[0, "longest", "0.weight"] == (pytest.approx(float(G[0].flatten(1).norm(dim=1).max())), "ok")
    assert found[0, "longest", ""][1] == "roughly: on purpose"
    assert [found[t, "longest.calls", ""][0] for t in range(3)] == [1, 2, 3]
    assert [found[t, "longest:rare.calls", ""][0] for t in (0, 2)] == [1, 2], "memories are their own"
    assert found[2, "longest.losses", ""][0] == 6
    assert found[2, "longest.losses", "0.bias"][0] == 7
    described = {q["name"]: q for q in Run(tmp_path).meta["quantities"]}
    assert described["longest:rare"]["settings"]["when"] == "every(2)"
    assert described["longest"]["unit"] == "1"
    assert described["longest"]["doc"] == "The longest individual gradient; it counts its calls."


@dataclass(frozen=True, eq=False)
class Following(Quantity):
    """The loss of the step after."""

    needs = (Known.LOSSES,)
    needs_after = (Known.LOSSES,)

    def compute(self, o: Observation) -> float:
        assert o.following is not None
        assert o.following.step == o.step + 1
        return float(o.following.losses.mean() - o.losses.mean())


def test_a_quantity_of_two_steps(tmp_path: Path) -> None:
    found = trained(tmp_path, plain, 3, quantities=[Following(), "loss"])
    for t in range(2):
        expected = found[t + 1, "loss", ""][0] - found[t, "loss", ""][0]
        assert found[t, "following", ""][0] == pytest.approx(expected, rel=1e-12)
    assert (2, "following", "") not in found


@dataclass(frozen=True, eq=False)
class Returns(Quantity):
    """Returns what it is told to."""

    what: Callable[[], Any]
    needs = (Known.LOSSES,)

    def compute(self, o: Observation) -> Any:
        return self.what()


COUNTS = np.array([1, 2, 3], dtype=np.int64)


@pytest.mark.parametrize(
    ("what", "stored"),
    [
        (lambda: 1.5, 1.5),
        (lambda: 2, 2.0),
        (lambda: True, 1.0),
        (lambda: np.float32(0.5), 0.5),
        (lambda: torch.tensor(2.5), 2.5),
        (lambda: torch.tensor(3), 3.0),
        (lambda: torch.tensor([1.0, 2.0], dtype=torch.bfloat16), np.array([1.0, 2.0])),
        (lambda: torch.ones(2, requires_grad=True), np.ones(2)),
        (lambda: Reading(4.0), 4.0),
    ],
    ids=["float", "int", "bool", "numpy", "tensor", "integer tensor", "array", "with a graph", "reading"],
)
def test_what_may_be_returned(tmp_path: Path, what: Callable[[], Any], stored: Any) -> None:
    found = trained(tmp_path, plain, 1, quantities=[Returns(what)])
    np.testing.assert_array_equal(found[0, "returns", ""][0], stored)
    assert found[0, "returns", ""][1] == "ok"


def test_histograms_may_be_returned(tmp_path: Path) -> None:
    found = trained(
        tmp_path, plain, 1, quantities=[Returns(lambda: Histogram(COUNTS, np.linspace(0, 1, 4), 4, 5))]
    )
    histogram = found[0, "returns", ""][0]
    assert histogram.counts.tolist() == [1, 2, 3]
    assert histogram.total == 15


def test_nothing_may_be_returned(tmp_path: Path) -> None:
    found = trained(tmp_path, plain, 1, quantities=[Returns(lambda: None), "loss"])
    assert (0, "returns", "") not in found
    assert (0, "loss", "") in found


@pytest.mark.parametrize("number", [float("nan"), float("inf"), torch.tensor(torch.nan)])
def test_a_number_that_is_none_is_said_to_be(tmp_path: Path, number: Any) -> None:
    found = trained(tmp_path, plain, 1, quantities=[Returns(lambda: number)])
    assert found[0, "returns", ""][1].startswith("nonfinite")


def test_a_gap_is_a_value_that_does_not_exist(tmp_path: Path) -> None:
    def gap() -> float:
        raise Gap("too_early: not yet")

    found = trained(tmp_path, plain, 1, quantities=[Returns(gap)])
    assert np.isnan(found[0, "returns", ""][0])
    assert found[0, "returns", ""][1] == "too_early: not yet"
    assert events(tmp_path) == []


def test_what_was_not_asked_for_is_a_gap() -> None:
    with pytest.raises(Gap, match=r"^no_losses: the losses of this step are not known$"):
        _ = observation().losses
    with pytest.raises(Gap, match=r"^no_updates"):
        observation()[Known.UPDATES]
    losses = torch.ones(3)
    assert observation({Known.LOSSES: losses}).losses is losses


def test_who_needs_nothing_has_a_value_too(tmp_path: Path) -> None:
    """Also where nothing else is due."""
    found = trained(tmp_path, plain, 3, quantities=["time"])
    times = [found[t, "time", ""][0] for t in range(3)]
    assert times == sorted(times)
    assert events(tmp_path) == []


@dataclass(frozen=True, eq=False)
class Broken(Quantity):
    """Fails in one place, from the second step on or at once."""

    where: str

    def _fail(self, here: str) -> None:
        if here == self.where:
            raise ZeroDivisionError(here)

    def start(self, parameters: Mapping[str, Tensor], memory: Memory) -> None:
        self._fail("start")

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        if step == 1:
            self._fail("request")
        return (Known.LOSSES,)

    def compute(self, o: Observation) -> Any:
        self._fail("compute")
        return {"text": "text", "object": object(), "complex": 1j}.get(self.where, 0.0)


@pytest.mark.parametrize("where", ["start", "request", "compute", "text", "object", "complex"])
def test_a_quantity_that_fails_does_not_end_the_training(tmp_path: Path, where: str) -> None:
    """Wherever it does: an event says so once, and the others go on."""
    found = trained(tmp_path, plain, 3, quantities=[Broken(where), "loss", "norm_test"])
    assert [t for t, name, scope in found if (name, scope) == ("loss", "")] == [0, 1, 2]
    assert all(found[t, "norm_test", ""][1] == "ok" for t in range(3))
    assert [kind for _, kind in events(tmp_path)].count("gap") >= 1


def test_a_choice_is_checked_with_a_helpful_text() -> None:
    check_choice("Q", "way", "a", ["a", "b"])
    with pytest.raises(CockpitError, match=r"^Q\(way='c'\): way is one of 'a', 'b'$"):
        check_choice("Q", "way", "c", iter(["a", "b"]))


@pytest.mark.parametrize("steps", [(), (4,)], ids=["one step", "a stretch"])
def test_one_formula_for_a_step_and_for_a_stretch(steps: tuple[int, ...]) -> None:
    each = np.arange(12.0)[: 3 * (steps or (1,))[0]].reshape(*steps, 3)
    found = reading(each.sum(-1), ("a", "b", "c"), each, ["odd"], half=each.sum(-1) / 2)
    if not steps:
        assert type(found) is Reading
        assert (found.value, dict(found.by_parameter)) == (3.0, {"a": 0.0, "b": 1.0, "c": 2.0})
        assert (found.status, found.more) == ("odd", {"half": 1.5})
        assert (type(reading(np.float64(2.0)).value), dict(reading(2.0).by_parameter)) == (float, {})
    else:
        assert isinstance(found, Readings)
        assert found.value.tolist() == each.sum(-1).tolist()
        assert found.by_parameter == (("a", "b", "c"), each)
        assert found.status == ["odd"] * 4
        assert found.more["half"].tolist() == (each.sum(-1) / 2).tolist()


@dataclass(frozen=True, eq=False)
class Largest(Quantity):
    """The largest loss, of a step or of each of a stretch; some answers are withheld."""

    needs = (Known.LOSSES,)
    stretches = True
    together: str = "right"

    def compute(self, o: Observation) -> Reading:
        losses = o.losses.numpy()
        if losses.ndim == 1:
            if o.step == 2:
                raise Gap("withheld: on purpose")
            return reading(losses.max(-1))
        if self.together == "fails":
            raise RuntimeError("not together")
        if self.together == "is something else":
            return Reading(1.0)
        return reading(losses.max(-1)[: 3 if self.together == "is too short" else None])


@pytest.mark.parametrize("together", ["right", "fails", "is something else", "is too short"])
def test_a_stretch_that_cannot_be_answered_is_asked_step_by_step(
    together: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PATIENCE", 1e9)
    found = trained(tmp_path, plain, 6, quantities=[Largest(together=together)])  # type: ignore[arg-type]
    for t in (0, 1, 3, 4, 5):
        value, status = found[t, "largest", ""]
        assert status == "ok"
        assert np.isfinite(value)
    assert found[2, "largest", ""][1] == ("ok" if together == "right" else "withheld: on purpose")
    assert events(tmp_path) == [], "it is not a failure"
