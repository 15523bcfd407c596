"""The buffer between training and disk: bounded, and honest about what it could not take."""

from __future__ import annotations

import threading

import numpy as np

from cockpit.store.inbox import Inbox
from cockpit.store.record import Histogram, Record


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
