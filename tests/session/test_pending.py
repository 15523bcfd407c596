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
from torch import nn

from cockpit import Alpha, Cockpit, GradAbsMax, GradHist1d, HessTrace, Quantity, Run, TICDiag, TICTrace
from cockpit.engine.needs import Known
from cockpit.engine.observed import Observed
from cockpit.engine.table import Table
from cockpit.engine.transfer import Transfer
from cockpit.presets import ECONOMY
from cockpit.quantities.quantity import Observation, OptimizerView
from cockpit.registry import make_preset
from cockpit.session import pending
from cockpit.session.pending import LAG, LONGEST, LONGEST_PATIENCE, PATIENCE, Backlog, Pending
from cockpit.session.recorder import Recorder
from cockpit.store import worker
from session.loops import FIRST_ORDER, batch, differences, events, losses_of, net, plain, records, sgd

LIGHT = ("loss", "grad_norm", "norm_test")
"""Quantities for which no vector of the model's size is kept, not even at the first step."""

CURVED = [
    TICDiag(),
    TICTrace(),
    HessTrace(),
    HessTrace("diag_h", label="hessian"),
    HessTrace("diag_ggn_mc", 1, label="one draw"),
    HessTrace("diag_ggn_mc", 3, label="estimated"),
]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps in the order in which they are recorded."""
    steps: list[int] = []
    write = Recorder.steps

    def seen(self: Recorder, some: Sequence[int], *more: Any) -> None:
        steps.extend(some)
        write(self, some, *more)

    monkeypatch.setattr(Recorder, "steps", seen)
    return steps


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The steps that some quantity looked at by themselves."""
    steps: set[int] = set()
    read = Recorder.read

    def seen(self: Recorder, quantity: Quantity, o: Observation, *more: Any) -> None:
        steps.add(o.step)
        read(self, quantity, o, *more)

    monkeypatch.setattr(Recorder, "read", seen)
    return steps


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step wait for others."""
    monkeypatch.setattr(pending, "PATIENCE", 0.0)
    monkeypatch.setattr(pending, "LONGEST_PATIENCE", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps wait for others for as long as it takes, even where the training is slow."""
    monkeypatch.setattr(pending, "PATIENCE", 1e9)
    monkeypatch.setattr(Recorder, "when_quiet", lambda self, call: None)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Let numbers be under way until somebody waits for them; steps in this set (by order of sending) arrive."""
    arrived: set[int] = set()
    order: list[Observed] = []  # kept, so that no two have the same identity
    send = Observed.send

    def sent(self: Observed) -> None:
        order.append(self)
        send(self)

    def here(self: Observed) -> bool:
        return next(k for k, o in enumerate(order) if o is self) in arrived

    monkeypatch.setattr(Observed, "send", sent)
    monkeypatch.setattr(Observed, "arrived", property(here))
    return arrived


def at_intervals(names: Sequence[str], interval: int) -> list[Quantity]:
    """Make quantities that are due at every so many steps."""
    return [q for q in make_preset("economy", interval) if q.name in names]


class Training:
    """A small training under the cockpit, step by step."""

    def __init__(self, folder: Path, quantities: Any = ECONOMY, **settings: Any) -> None:
        self.folder, self.model, self.t = folder, net(), 0
        self.opt = sgd(self.model)
        self.cockpit = Cockpit(self.model, self.opt, quantities=list(quantities), run=folder, **settings)

    def step(self, body: Callable[..., object] = plain) -> None:
        self.opt.zero_grad()
        body(self.cockpit, self.model, self.opt, self.t)
        self.opt.step()
        self.t += 1


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


def nan_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    x, y = batch(t)
    losses = losses_of(model, x, y)
    cockpit.backward(losses * torch.nan if t == 2 else losses)
    if t == 2:
        opt.zero_grad()  # nothing moves


def changing(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    opt.param_groups[0]["lr"] = 0.1 / (t + 1)
    plain(cockpit, model, opt, t)
    cockpit.log(mine=float(t))


def unwatched_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    if t == 2:
        losses_of(model, *batch(t)).mean().backward()
    else:
        plain(cockpit, model, opt, t)


def still_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    opt.param_groups[0]["lr"] = 0.0 if t == 2 else 0.1
    plain(cockpit, model, opt, t)


def flat_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    losses = losses_of(model, *batch(t))
    cockpit.backward(0.0 * losses if t == 2 else losses)


def fewer_at_two(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    cockpit.backward(losses_of(model, *batch(t, n=4 if t == 2 else 6)))


BODIES = [plain, nan_at_two, changing, unwatched_at_two, still_at_two, flat_at_two, fewer_at_two]


@pytest.mark.parametrize(
    "quantities", [ECONOMY, [*FIRST_ORDER, "time"], CURVED], ids=["economy", "first order", "curved"]
)
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_records_are_the_same_whenever_they_come(
    body: Callable[..., object], quantities: list[Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name in ("now", "late"):
        request.getfixturevalue("late" if name == "late" else "impatient")
        training = Training(tmp_path / name, quantities)
        for _ in range(7):
            training.step(body)
        training.cockpit.close()
    assert differences(records(tmp_path / "late"), records(tmp_path / "now"), rtol=0, atol=0) == []
    assert sorted(events(tmp_path / "late")) == sorted(events(tmp_path / "now"))


@pytest.mark.parametrize("names", [["alpha", "loss", "norm_test"], ["loss", "norm_test"]], ids=len)
def test_steps_at_intervals_are_looked_at_together(
    names: list[str], tmp_path: Path, patient: None, alone: set[int]
) -> None:
    training = Training(tmp_path, at_intervals(names, 3))
    for _ in range(20):
        training.step()
    training.cockpit.close()
    assert len(alone) <= 2  # the first one, and one where steps begin to be replayed
    for name in names:
        assert Run(tmp_path).series(name).steps.tolist() == list(range(0, 20, 3))


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("interval", [2, 3])
def test_records_at_intervals_are_the_same_whenever_they_come(
    body: Callable[..., object], interval: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Steps that are looked at, and those after them, which are looked at for their sake, come in turns."""
    quantities = [*at_intervals(ECONOMY, interval), Alpha(label="always")]
    for name in ("now", "late"):
        request.getfixturevalue("late" if name == "late" else "impatient")
        for some, chosen in (("even", quantities[:-1]), ("mixed", quantities)):
            training = Training(tmp_path / some / name, chosen)
            for _ in range(10):
                training.step(body)
            training.cockpit.close()
    for some in ("even", "mixed"):
        late, now = tmp_path / some / "late", tmp_path / some / "now"
        assert differences(records(late), records(now), rtol=0, atol=0) == []
        assert sorted(events(late)) == sorted(events(now))


@pytest.mark.parametrize("quantity", CURVED, ids=lambda q: q.name)
def test_curvature_of_many_steps_is_looked_at_together(
    quantity: Quantity, tmp_path: Path, patient: None, alone: set[int]
) -> None:
    training = Training(tmp_path, [quantity])
    for _ in range(6):
        training.step()
    training.cockpit.close()
    assert alone == {0}
    assert Run(tmp_path).series(quantity.name).steps.tolist() == list(range(6))


def test_steps_are_marked_by_what_was_known_at_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, patience in (("now", 0.0), ("late", 1e9)):
        monkeypatch.setattr(pending, "PATIENCE", patience)
        monkeypatch.setattr(pending, "LONGEST_PATIENCE", patience)
        model = nn.Sequential(net()[0], nn.BatchNorm1d(6, dtype=torch.float64), net()[2])
        opt = sgd(model)
        with Cockpit(model, opt, quantities=["norm_test"], run=tmp_path / name) as cockpit:
            for t in range(9):
                model.train(t not in (3, 4, 5))
                plain(cockpit, model, opt, t)
                opt.step()
                opt.zero_grad()
    now, late = records(tmp_path / "now"), records(tmp_path / "late")
    assert differences(late, now, rtol=0, atol=0) == []
    marked = [now[t, "norm_test", ""][1] != "ok" for t in range(9)]
    assert marked == [t not in (3, 4, 5) for t in range(9)]


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
