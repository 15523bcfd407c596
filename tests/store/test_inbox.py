"""The buffer between training and disk: bounded, and honest about what it could not take."""

from __future__ import annotations

import threading

import numpy as np

from cockpit.store.inbox import Inbox, count
from cockpit.store.record import Column, Columns, Histogram, Histograms, Numbers, Record


def test_a_full_buffer_drops_detail_first_and_counts() -> None:
    inbox = Inbox(limit=100_000)
    hist = Histogram(np.zeros(1000, dtype=np.int64), np.zeros(1001))
    for step in range(20):
        inbox.put((Record(step, "h", hist), Record(step, "loss", 1.0)))
    inbox.put(tuple(Record(step, "loss", 1.0) for step in range(20, 1000)))
    items, closed = inbox.wait(0)
    kept = [record for item in items if isinstance(item, tuple) for record in item]
    dropped = inbox.take_dropped()
    assert dropped is not None
    assert len(kept) + dropped.count == 20 * 2 + 980
    assert {record.name for record in kept if record.step < 3} == {"h", "loss"}
    assert all(any(r.step == step and r.name == "loss" for r in kept) for step in range(20))
    assert dropped.last == 999
    assert inbox.take_dropped() is None
    assert not closed


def test_flush_waits_for_what_was_put_in_before_and_not_longer() -> None:
    inbox = Inbox()
    assert inbox.flush(0.0)
    inbox.put((Record(0, "loss", 1.0),))
    assert not inbox.flush(0.01)
    timer = threading.Timer(0.05, inbox.remove, (1, 1))
    timer.start()
    assert inbox.flush(5.0)
    timer.join()
    assert inbox.acknowledged == 1


def test_a_failed_attempt_loses_nothing() -> None:
    inbox = Inbox()
    inbox.put((Record(0, "loss", 1.0),))
    first, _ = inbox.wait(0)
    second, _ = inbox.wait(0)
    assert first == second
    inbox.close()
    inbox.put((Record(1, "loss", 1.0),))  # too late
    assert inbox.wait(0) == (first, True)


def test_columns_are_dropped_whole_and_counted_by_their_records() -> None:
    inbox = Inbox(limit=100_000)
    names = tuple(f"w{k}" for k in range(100))
    hist = Histograms(names, np.zeros((100, 10), dtype=np.int64), np.arange(11.0))
    given = 0
    for step in range(100):
        given += 100 + 101
        inbox.put((Column(step, "h", parts=hist), Column(step, "p", 1.0, parts=Numbers(names, np.ones(100)))))
    items, _ = inbox.wait(0)
    kept = [item for row in items if isinstance(row, tuple) for item in row]
    dropped = inbox.take_dropped()
    assert dropped is not None
    assert count(kept) + dropped.count == given
    assert [item.name for item in kept if item.step == 2] == ["h", "p"]
    assert [item.name for item in kept if item.step == 20] == ["p"]  # detail goes first
    assert (dropped.first > 2, dropped.last) == (True, 99)
    inbox.remove(len(items), count(kept))
    inbox.put((Column(100, "h", parts=hist),))
    assert len(inbox.wait(0)[0]) == 1
    assert inbox.take_dropped() is None


def test_columns_of_several_steps_are_dropped_whole_and_counted() -> None:
    inbox = Inbox(limit=100_000)
    names, edge = tuple(f"w{k}" for k in range(100)), np.arange(11.0)
    each = [Histograms(names, np.zeros((100, 10), dtype=np.int64), edge) for _ in range(2)]
    whole = [Histogram(np.zeros(10, dtype=np.int64), edge) for _ in range(2)]
    given = 0
    for start in range(0, 200, 2):
        steps = (start, start + 1)
        given += 2 * 101 + 2 * 101
        inbox.put(
            (
                Columns(steps, "h", whole, parts=each),
                Columns(steps, "p", [0.0, 0.0], None, (names, np.ones((2, 100)))),
            )
        )
    items, _ = inbox.wait(0)
    kept = [item for row in items if isinstance(row, tuple) for item in row]
    dropped = inbox.take_dropped()
    assert dropped is not None
    assert count(kept) + dropped.count == given
    assert [item.name for item in kept if item.steps[0] == 2] == ["h", "p"]
    assert [item.name for item in kept if item.steps[0] == 40] == ["p"]  # detail goes first
    assert dropped.last == 199
