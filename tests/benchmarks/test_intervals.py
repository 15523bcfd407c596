"""Composed costs."""

from __future__ import annotations

import pytest

from benchmarks.intervals import composed
from cockpit.bench.rounds import Cost, Spread


def cost(ratio: float, gpu: bool = False) -> Cost:
    spread = Spread(ratio, ratio - 0.5, ratio + 0.5)
    return Cost(10 * ratio, spread, None if gpu else 5 * ratio, None if gpu else spread, 3, 4)


def test_one_known_stretch_and_idle_steps() -> None:
    found = composed(cost(4.0), 4, cost(1.0), 16)
    assert found.ratio == Spread(pytest.approx(1.75), pytest.approx(1.25), pytest.approx(2.25))
    assert found.process_ms == pytest.approx(5 * 1.75)
    assert found.wall_ms == pytest.approx(10 * 1.75)


def test_on_a_gpu_there_is_no_processor_time() -> None:
    found = composed(cost(4.0, gpu=True), 1, cost(1.0, gpu=True), 2)
    assert found.process is None
    assert found.process_ms is None
    assert found.wall.median == pytest.approx(2.5)
