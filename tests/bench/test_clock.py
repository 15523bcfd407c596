"""The clock counts steps, and the work they left to others."""

from __future__ import annotations

import time

from cockpit.bench.clock import Times, timed


def test_every_step_is_run_and_counted() -> None:
    calls: list[str] = []
    times = timed(lambda: calls.append("step"), 5, settle=lambda: calls.append("settled"))
    assert calls == ["step"] * 5 + ["settled"]
    assert times.steps == 5


def test_waiting_is_wall_time_and_not_processor_time() -> None:
    times = timed(lambda: time.sleep(0.02), 2)
    assert times.wall >= 0.04
    assert times.process is not None
    assert times.process < 0.02


def test_what_settles_is_inside_the_clock() -> None:
    assert timed(lambda: None, 1, settle=lambda: time.sleep(0.03)).wall >= 0.03


def test_the_clock_that_counts() -> None:
    assert Times(1, wall=3.0, process=2.0).seconds == 2.0
    assert Times(1, wall=3.0, process=None).seconds == 3.0
