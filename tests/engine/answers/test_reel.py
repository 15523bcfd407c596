"""Numbers of replays that wait for each other on the device, and reach the host together."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit.engine.answers import reel as module
from cockpit.engine.answers.reel import Reel
from cockpit.engine.answers.transfer import Arriving, Sent, packed
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.statistics import Norm2
from engine.replayed import CUDA

DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ON_CPU", module.LONGEST)


def reel_of(device: str, *makers: Callable[[Tensor], Tensor]) -> tuple[Tensor, Reel]:
    """Return a number that recordings read, and a reel of what is made of it."""
    source = torch.zeros(3, dtype=torch.float64, device=device)
    recorder = Recorder.of(torch.device(device))
    found = makers or (lambda x: x * 2, lambda x: x.long() + 2**53)
    for maker in found:
        maker(source)  # what is slow the first time must not be captured
    return source, Reel(recorder, lambda: ([(Norm2(), ("a",))], packed([make(source) for make in found])))


def replayed(source: Tensor, reel: Reel, values: range) -> list[Arriving]:
    rows = []
    for value in values:
        source.fill_(value)
        rows.append(reel.replay())
    return rows


def check(rows: list[Arriving], values: range) -> None:
    for row, value in zip(rows, values, strict=True):
        floats, integers = row.stacks([])
        assert floats.tolist() == [2.0 * value] * 3
        assert integers.tolist() == [2**53 + value] * 3


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """What was sent to the host."""
    made: list[Sent] = []

    class Counted(Sent):
        def __init__(self, flat: Tensor) -> None:
            super().__init__(flat)
            made.append(self)

    monkeypatch.setattr(module, "Sent", Counted)
    return made


@DEVICES
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_every_replay_keeps_its_own_numbers(device: str, count: int) -> None:
    values = range(count)
    rows = replayed(*reel_of(device), values)
    check(rows, values)


@DEVICES
def test_what_the_work_writes_on_its_way_does_not_reach_earlier_rows(device: str) -> None:
    """A graph's memory is used several times during a replay."""

    def busy(x: Tensor) -> Tensor:
        for size in (2**k for k in range(4, 18)):
            x = x + torch.full((size,), 7.0, dtype=torch.float64, device=device).sum() * 0
        return x

    source, reel = reel_of(device, busy)
    for k, row in enumerate(replayed(source, reel, range(12))):
        assert row.stacks([])[0].tolist() == [k] * 3


@DEVICES
def test_a_full_reel_is_sent_by_itself_and_once(device: str, copies: list[Sent]) -> None:
    source, reel = reel_of(device)
    rows = replayed(source, reel, range(15))
    assert not copies
    assert not any(row.arrived for row in rows)
    rows += replayed(source, reel, range(15, 16))
    assert len(copies) == 1
    check(rows, range(16))
    assert all(row.arrived for row in rows)
    assert len(copies) == 1


@DEVICES
def test_rows_can_be_had_before_the_reel_is_full(device: str, copies: list[Sent]) -> None:
    source, reel = reel_of(device)
    first = replayed(source, reel, range(5))
    first[2].hasten()
    first[4].hasten()
    assert len(copies) == 1
    second = replayed(source, reel, range(5, 9))
    check(second, range(5, 9))
    check(first, range(5))
    assert len(copies) == 2


@DEVICES
def test_numbers_without_room_for_others_are_sent_at_once(
    device: str, copies: list[Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM", 60)
    source, reel = reel_of(device)
    rows = replayed(source, reel, range(3))
    assert len(copies) == 3
    check(rows, range(3))


@DEVICES
def test_rows_that_nobody_waits_for_are_in_nobodys_way(device: str, copies: list[Sent]) -> None:
    source, reel = reel_of(device)
    replayed(source, reel, range(10))
    kept = replayed(source, reel, range(10, 14))
    replayed(source, reel, range(14, 20))
    check(kept, range(10, 14))
    assert len(copies) == 1


def test_a_reel_dies_with_the_last_who_knows_it() -> None:
    source, reel = reel_of("cpu")
    rows, known = replayed(source, reel, range(3)), weakref.ref(reel)
    gc.disable()
    try:
        del reel
        assert known() is not None, "rows are still on it"
        check(rows, range(3))
        assert known() is None
    finally:
        gc.enable()


@DEVICES
@pytest.mark.parametrize("whole", [True, False])
def test_numbers_of_one_kind_only(device: str, whole: bool) -> None:
    source, reel = reel_of(device, (lambda x: x.long()) if whole else (lambda x: x / 2))
    for k, row in enumerate(replayed(source, reel, range(3))):
        (found,) = row.stacks([])
        assert found.tolist() == [k if whole else k / 2] * 3
        assert row.size == 24
        assert row.arrays()[not whole] is None


@DEVICES
def test_what_is_no_number_arrives_as_it_is(device: str) -> None:
    source, reel = reel_of(device, lambda x: x / x, lambda x: 1 / x)
    (row,) = replayed(source, reel, range(1))
    nan, infinite = row.stacks([])
    assert np.isnan(nan).all()
    assert np.isposinf(infinite).all()


@DEVICES
def test_another_thread_may_ask_while_replays_go_on(device: str) -> None:
    source, reel = reel_of(device)
    rows: list[Arriving] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            for row in list(rows):
                row.hasten()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for value in range(200):
            rows += replayed(source, reel, range(value, value + 1))
    finally:
        done.set()
        thread.join()
    check(rows, range(200))


def test_on_a_cpu_every_row_is_there_at_once(copies: list[Sent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ON_CPU", 1)
    rows = replayed(*reel_of("cpu"), range(3))
    assert all(row.arrived for row in rows)
    assert not copies
    assert [row.size for row in rows] == [48] * 3
    check(rows, range(3))
