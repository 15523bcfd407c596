"""The recorder: what is handed over arrives, in whatever order the steps become known, without work per parameter."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit.engine.answers.table import Table
from cockpit.engine.needs import Need
from cockpit.engine.statistics import Norm2
from cockpit.errors import Gap
from cockpit.instruments.overview import run_card
from cockpit.quantities.quantity import Observation, OptimizerView, Quantity, Reading
from cockpit.session.columns import COUPLED
from cockpit.session.recorder import Recorder
from cockpit.store.record import NONFINITE, Numbers
from cockpit.store.run import Run


@dataclass(frozen=True, eq=False)
class Told(Quantity):
    """Returns, or raises, what it was told to."""

    answers: dict[int, object] = field(default_factory=dict)
    wanted: tuple[Need, ...] = ()

    def request(self, memory: object, step: int) -> Iterable[Need]:
        return self.wanted

    def compute(self, o: Observation) -> Reading:
        answer = self.answers[o.step]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


def observation(step: int) -> Observation:
    return Observation(step, 4, Table({}), OptimizerView("SGD", {}, True, (0.1,)), {})


def recorder(folder: Path, *quantities: Quantity) -> Recorder:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Recorder(folder, model, [optimizer], quantities, "", None, None)


def numbers(step: int, names: tuple[str, ...]) -> Reading:
    return Reading(float(step), Numbers(names, np.full(len(names), float(step))))


def test_readings_of_earlier_steps_arrive(tmp_path: Path) -> None:
    quantity = Told({step: numbers(step, ("a", "b")) for step in range(10)})
    found = recorder(tmp_path, quantity)
    for step in range(13):
        if step >= 3:
            found.read(quantity, observation(step - 3), {}, {})
        found.steps([step], [(0.1, 0.2)], [(("note", f"at {step}"),)], {})
        found.event(step, "other", "this step's")
    found.close()
    run = Run(tmp_path)
    assert run.series("told").steps.tolist() == list(range(10))
    assert np.asarray(run.series("told", "b").values).tolist() == list(range(10))
    assert len(run.series("learning_rate", "group_1")) == 13
    assert len(run.events("note")) == 13


def test_gaps_failures_and_numbers_that_are_not_finite(tmp_path: Path) -> None:
    answers = {0: Gap("flat: no slope"), 1: ZeroDivisionError("oh"), 2: Reading(math.nan), 3: 1.0}
    answers[4] = Reading(1.0, Numbers(("a", "b"), [1.0, math.inf]))
    quantity = Told(answers)
    found = recorder(tmp_path, quantity)
    for step in range(5):
        found.read(quantity, observation(step), {}, {})
    found.close()
    run = Run(tmp_path)
    failed = "failed: ZeroDivisionError: oh"
    assert run.series("told").status == ["flat: no slope", failed, NONFINITE, "ok", "ok"]
    assert (run.series("told", "a").status, run.series("told", "b").status) == (["ok"], [NONFINITE])
    assert [event.text for event in run.events("gap")] == [f"told: {failed}"]


@pytest.mark.parametrize("individual", [True, False])
def test_row_contributions_are_marked_where_individual_gradients_count(
    tmp_path: Path, individual: bool
) -> None:
    quantity = Told({step: numbers(step, ("a", "b")) for step in range(4)}, (Norm2(),) if individual else ())
    found = recorder(tmp_path, quantity)
    ways = [
        {"a": ("formula", ""), "b": ("row_contribution", "why")},
        {"a": ("formula", ""), "b": ("formula", "")},
    ]
    for step in range(4):
        found.read(quantity, observation(step), {}, dict(ways[step // 2]))
        found.steps([step], [(0.1,)], [()], dict(ways[step // 2]))
        if step < 2:
            assert found._writer is not None
            assert found._writer.flush()
            assert Run(tmp_path).meta["coverage"]["b"] == {"way": "row_contribution", "reason": "why"}
    found.close()
    run = Run(tmp_path)
    assert run.series("told", "b").status == ([COUPLED, COUPLED] if individual else ["ok", "ok"]) + [
        "ok",
        "ok",
    ]
    assert run.series("told", "a").status == ["ok"] * 4
    assert run.series("told").status == ([COUPLED, COUPLED] if individual else ["ok", "ok"]) + ["ok", "ok"]
    assert run.meta["coverage"]["b"]["way"] == "formula"


def calls(found: Recorder, quantity: Quantity, coverage: dict[str, tuple[str, str]]) -> int:
    """Return how many functions are called and built-ins entered to record one step."""
    seen = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    o = observation(1)
    sys.setprofile(profile)
    found.read(quantity, o, {}, coverage)
    found.steps([1], [(0.1,)], [()], coverage)
    sys.setprofile(None)
    return seen


def test_no_work_for_each_parameter(tmp_path: Path) -> None:
    """The training thread does the same for two parameters and for a thousand."""
    counted = []
    for size in (2, 1000):
        names = tuple(f"w{k}" for k in range(size))
        quantity = Told({step: numbers(step, names) for step in range(2)})
        coverage = {name: ("row_contribution", "") for name in names}
        found = recorder(tmp_path / str(size), quantity)
        found.read(quantity, observation(0), {}, coverage)
        found.steps([0], [(0.1,)], [()], coverage)
        counted.append(calls(found, quantity, coverage))
        found.close()
    assert counted[0] == counted[1] < 60


def test_settings_of_optimisers_that_are_several_numbers(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.8, 0.95))
    optimizer.param_groups[0] |= {"odd": object(), "mixed": (1, "a"), "none": []}
    Recorder(tmp_path / "run", model, [optimizer], [], "", None, None).close()
    (settings,) = Run(tmp_path / "run").meta["hyperparameters"]
    assert settings["betas"] == [0.8, 0.95]
    assert settings["lr"] == 0.001
    assert not settings.keys() & {"odd", "mixed", "params"}
    assert run_card(Run(tmp_path / "run"), "x")["hyperparameters"]["betas"] == "0.8, 0.95"
