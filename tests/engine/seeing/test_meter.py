from __future__ import annotations

from contextlib import suppress

import pytest

from cockpit.engine.seeing import meter as module
from cockpit.engine.seeing.meter import LONG, OFTEN, Meter


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: moment[0])
    return moment


def test_share_of_the_time_without(now: list[float]) -> None:
    meter = Meter()
    assert meter.share is None
    with meter:
        now[0] += 1
    now[0] += 9
    assert meter.spent == 1
    assert meter.share == pytest.approx(1 / 9)


def test_blocks_within_blocks_count_once(now: list[float]) -> None:
    meter = Meter()
    with meter:
        now[0] += 1
        with meter:
            now[0] += 2
        now[0] += 3
    assert meter.spent == 6


def test_a_failing_block_ends(now: list[float]) -> None:
    meter = Meter()
    with suppress(ValueError), meter:
        now[0] += 1
        raise ValueError("x")
    with meter:
        now[0] += 1
    assert meter.spent == 2


def test_news_come_from_time_to_time(now: list[float]) -> None:
    meter = Meter()
    with meter:
        now[0] += 1
    now[0] += 1
    assert meter.news() == pytest.approx(1.0)
    now[0] += OFTEN / 2
    assert meter.news() is None
    now[0] += OFTEN
    assert meter.news() is not None


def test_long_steps_are_told(now: list[float]) -> None:
    meter = Meter()
    for seconds, told in ((LONG / 2, None), (2 * LONG, 2 * LONG), (LONG / 2, None)):
        with meter:
            now[0] += seconds
        now[0] += 100
        assert meter.lap() == told
