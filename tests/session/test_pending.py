"""Steps whose numbers are still on their way: recorded later, in order, and the same as if they had come at once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cockpit import Cockpit, GradAbsMax, GradHist1d, Quantity, Run
from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Transfer, packed
from cockpit.engine.needs import Known
from cockpit.presets import ECONOMY
from cockpit.quantities.quantity import Observation, OptimizerView
from cockpit.session import pending
from cockpit.session.pending import LAG, LONGEST, LONGEST_PATIENCE, PATIENCE, Backlog, Pending
from cockpit.store import worker
from session.loops import (
    Training,
    differences,
    events,
    records,
)

LIGHT = ("loss", "grad_norm", "norm_test")
"""Quantities for which no vector of the model's size is kept, not even at the first step."""


@pytest.mark.parametrize(("budget", "most"), [(None, LONGEST), (0.5, LAG)])
def test_steps_wait_for_their_numbers_but_not_for_ever(
    budget: float | None, most: int, tmp_path: Path, recorded: list[int], late: set[int]
) -> None:
    training = Training(tmp_path, LIGHT, budget=budget)
    training.cockpit.budget = training.cockpit._agenda._budget = (
        None  # what it would leave out is due all the same
    )
    for t in range(2 * most):
        training.step()
        assert t + 1 - most <= len(recorded) <= t + 1 - most // 2 or not recorded
    assert recorded
    training.cockpit.close()
    assert recorded == list(range(2 * most))


def test_what_has_arrived_is_recorded_in_order(
    tmp_path: Path, recorded: list[int], late: set[int], impatient: None
) -> None:
    training = Training(tmp_path, LIGHT)
    training.step()
    late.add(1)
    training.step()
    assert recorded == [], "the first one has not arrived"
    late.add(0)
    training.step()
    assert recorded == [0, 1]
    training.cockpit.close()
    assert recorded == [0, 1, 2]


def test_steps_that_take_their_time_are_recorded_at_once(
    tmp_path: Path, recorded: list[int], impatient: None
) -> None:
    training = Training(tmp_path)
    for t in range(3):
        training.step()
        assert recorded == list(range(t + 1))
    training.cockpit.close()


def test_small_steps_wait_for_each_other(tmp_path: Path, recorded: list[int], patient: None) -> None:
    training = Training(tmp_path, LIGHT)
    for t in range(2 * LONGEST + 2):
        training.step()
        assert len(recorded) == 1 + t // LONGEST * LONGEST, "the first one does not wait"
    training.cockpit.close()
    assert recorded == list(range(2 * LONGEST + 2))


def test_large_steps_do_not(
    tmp_path: Path, recorded: list[int], patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "LARGEST", 1)
    training = Training(tmp_path)
    for t in range(3):
        training.step()
        assert recorded == list(range(t + 1))
    training.cockpit.close()


def test_steps_are_recorded_while_the_training_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PATIENCE", 1e9)
    monkeypatch.setattr(worker, "INTERVAL", 0.02)
    training = Training(tmp_path, LIGHT)
    for _ in range(4):
        training.step()
    deadline = time.monotonic() + 20
    while Run(tmp_path).steps() != (4, 3) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Run(tmp_path).steps() == (4, 3)
    for _ in range(4):
        training.step()
    training.cockpit.close()
    assert Run(tmp_path).series("loss").steps.tolist() == list(range(8))


def test_the_writing_thread_leaves_steps_alone_while_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PATIENCE", 1e9)
    monkeypatch.setattr(pending, "IDLE", 1e9)
    monkeypatch.setattr(worker, "INTERVAL", 0.02)
    training = Training(tmp_path, LIGHT)
    for _ in range(4):
        training.step()
    time.sleep(0.3)
    assert len(training.cockpit._evaluation._backlog) == 3, "the first does not wait for others"
    training.cockpit.close()
    assert Run(tmp_path).series("loss").steps.tolist() == list(range(4))


def test_a_checkpoint_waits(tmp_path: Path, recorded: list[int], request: pytest.FixtureRequest) -> None:
    states = []
    for name in ("now", "late"):
        if name == "late":
            request.getfixturevalue("late")
        recorded.clear()
        training = Training(tmp_path / name, [*ECONOMY, "cabs"])
        for _ in range(3):
            training.step()
        states.append(training.cockpit.state_dict())
        assert recorded == [0, 1, 2]
        training.cockpit.close()
    now, late = states
    assert late["step"] == now["step"] == 3
    assert late["waiting"] == now["waiting"] == ["alpha"]
    assert late["previous"]["step"] == now["previous"]["step"] == 2
    assert set(late["previous"]["statistics"]) == set(now["previous"]["statistics"])
    for name, (vector, factor) in now["engine"]["last_update"].items():
        assert late["engine"]["last_update"][name][1] == factor
        assert torch.equal(late["engine"]["last_update"][name][0], vector)


def test_a_resumed_run_is_the_same(tmp_path: Path, late: set[int]) -> None:
    straight, cut = Training(tmp_path / "straight"), Training(tmp_path / "cut")
    for _ in range(6):
        straight.step()
    straight.cockpit.close()
    for _ in range(3):
        cut.step()
    state = cut.cockpit.state_dict()
    cut.cockpit.close()
    again = Cockpit(cut.model, cut.opt, quantities=list(ECONOMY), run=tmp_path / "cut")
    again.load_state_dict(state)
    cut.cockpit = again
    for _ in range(3):
        cut.step()
    again.close()
    assert differences(records(tmp_path / "cut"), records(tmp_path / "straight"), rtol=1e-12) == []


def test_loading_a_checkpoint_waits_for_what_is_under_way(
    tmp_path: Path, recorded: list[int], late: set[int]
) -> None:
    training = Training(tmp_path)
    training.step()
    state = training.cockpit.state_dict()
    training.step()
    training.step()
    assert recorded == [0]
    training.cockpit.load_state_dict(state)
    assert recorded == [0, 1, 2]
    assert training.cockpit.step == 1
    training.t = 1
    training.step()
    training.cockpit.close()
    assert recorded == [0, 1, 2, 1]
    assert Run(tmp_path).series("loss").steps.tolist() == [0, 1], "the others are superseded"


@pytest.mark.parametrize(
    "quantity",
    ["parameters", GradHist1d(10, adapt=GradAbsMax())],
    ids=["holds vectors of the model's size", "the next request depends on it"],
)
def test_who_cannot_wait(quantity: Any, tmp_path: Path, recorded: list[int], late: set[int]) -> None:
    training = Training(tmp_path, ["loss", quantity])
    for t in range(3):
        training.step()
        assert recorded == list(range(t + 1))
    training.cockpit.close()


@dataclass(frozen=True, eq=False)
class Fails(Quantity):
    """Cannot be computed at step 1."""

    needs = (Known.LOSSES,)

    def compute(self, o: Observation) -> float:
        if o.step == 1:
            raise RuntimeError("not today")
        return float(o.losses.sum())


def test_what_fails_later_is_a_gap_of_its_own_step(tmp_path: Path, late: set[int]) -> None:
    training = Training(tmp_path, [Fails(), "loss"])
    for _ in range(4):
        training.step()
    training.cockpit.close()
    found = records(tmp_path)
    status = {t: found[t, "fails", ""][1] for t in range(4)}
    assert status[1].startswith("failed: RuntimeError: not today")
    assert {status[t] for t in (0, 2, 3)} == {"ok"}
    assert all(found[t, "loss", ""][1] == "ok" for t in range(4))


@pytest.mark.parametrize("quantities", [ECONOMY, LIGHT], ids=["one by one", "together"])
def test_numbers_that_cannot_be_had_end_no_training(
    quantities: Any, tmp_path: Path, recorded: list[int], late: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, sent = Transfer.arrays, list[Transfer]()

    def broken(self: Transfer) -> Any:
        if self not in sent:
            sent.append(self)
        if self in sent[1:2]:
            raise RuntimeError("the device is gone")
        return arrays(self)

    monkeypatch.setattr(Transfer, "arrays", broken)
    training = Training(tmp_path, quantities)
    for _ in range(4):
        training.step()
    training.cockpit.close()
    assert recorded == [0, 2, 3]
    assert any(kind == "gap" for _, kind in events(tmp_path))


def test_who_waits_for_a_step_that_is_lost_gets_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Training(tmp_path / "whole", ["alpha"])
    for _ in range(4):
        expected.step()
    expected.cockpit.close()
    settle, calls = Observed.settle, 0

    def broken(self: Observed) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("the device is gone")
        settle(self)

    monkeypatch.setattr(Observed, "settle", broken)
    training = Training(tmp_path / "lost", ["alpha"])
    for _ in range(4):
        training.step()
    training.cockpit.close()
    found, whole = records(tmp_path / "lost"), records(tmp_path / "whole")
    assert found[2, "alpha", ""][0] == pytest.approx(whole[2, "alpha", ""][0])
    value = found.get((0, "alpha", ""), (float("nan"), ""))[0]
    assert value != value or value == pytest.approx(whole[0, "alpha", ""][0])


def test_closing_twice_records_once(tmp_path: Path, recorded: list[int], late: set[int]) -> None:
    training = Training(tmp_path)
    training.step()
    training.cockpit.close()
    training.cockpit.close()
    assert recorded == [0]


def test_the_observation_is_that_of_its_step() -> None:
    table = Table({})
    observed = Observed(5, table, {Known.LOSSES: torch.ones(5)}, methods={}, variances={})
    view = OptimizerView("SGD", {}, True, (0.1,))
    found = Pending(7, observed, view, [], [], 12.5).observation()
    assert (found.step, found.examples, found.clock) == (7, 5, 12.5)
    assert found.statistics is table
    assert found.optimizer is view
    assert found.losses.tolist() == [1.0] * 5
    assert found.following is None


def test_a_program_that_ends_without_closing_loses_nothing(
    tmp_path: Path, recorded: list[int], late: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("cockpit.session.evaluation.atexit.register", at_exit.append)
    training = Training(tmp_path, LIGHT)
    for _ in range(2):
        training.step()
    assert recorded == []
    at_exit[-1]()
    assert recorded == [0, 1]
    training.cockpit.close()


@pytest.mark.parametrize("quantities", [LIGHT, ("hess_trace", "tic_diag")], ids=["light", "curved"])
def test_a_cockpit_that_is_dropped_unclosed_loses_nothing(
    tmp_path: Path, recorded: list[int], patient: None, quantities: Sequence[str]
) -> None:
    training = Training(tmp_path, quantities)
    recorder = training.cockpit._recorder
    for _ in range(4):
        training.step()
    assert recorded == [0], "small steps wait for each other, those with curvature as well"
    del training
    gc.collect()
    assert recorded == [0, 1, 2, 3]
    recorder.close()
    assert Run(tmp_path).steps() == (4, 3)


def test_where_recording_takes_long_steps_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("cockpit.session.pending.time.monotonic", lambda: now[0])
    backlog = Backlog()
    backlog._most = LONGEST
    for seconds, patience in ((0.0, PATIENCE), (0.0025, 0.25), (1.0, LONGEST_PATIENCE), (0.0005, PATIENCE)):
        assert backlog.stretch(wait=False) == []
        backlog.took(seconds)
        now[0] += 0.99 * patience
        assert not backlog.ripe
        now[0] += 0.02 * patience
        assert backlog.ripe


def test_after_a_large_step_small_ones_wait_for_each_other_again() -> None:
    def waiting(size: int) -> Pending:
        observed = Observed(1, Table({}), {})
        observed.add([], Transfer(packed([torch.zeros(size, dtype=torch.float64)])))
        return Pending(0, observed, OptimizerView("SGD", {}, True, (0.1,)), [], [], 0.0)

    backlog, most = Backlog(), []
    for size in (4, 4, 2**18, 2**18, 4, 4, 4):
        backlog.add(waiting(size))
        most.append(backlog._most)
    few = 1 + pending.LARGEST // (8 * 2**18)
    assert most == [LONGEST, LONGEST, few, few, few, LONGEST, LONGEST]
