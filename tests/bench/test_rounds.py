"""Rounds: contestants take turns, ratios are those of the same round, and whoever fails is left out with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cockpit.bench.clock import Times
from cockpit.bench.rounds import WARM, Entry, Pace, UnableError, measure, reason


def constant(
    key: str, seconds: float, order: list[tuple[str, int]] | None = None, interval: int = 1
) -> Entry:
    """A contestant whose every step takes so many seconds of processor time, and twice as many on the wall."""

    def run(steps: int) -> Times:
        if order is not None:
            order.append((key, steps))
        return Times(steps, 2 * seconds * steps, seconds * steps)

    return Entry(key, run, "base", interval)


def drifting(key: str, factor: float) -> Entry:
    """A contestant on a machine that becomes slower with every call."""
    calls = 0

    def run(steps: int) -> Times:
        nonlocal calls
        calls += 1
        return Times(steps, factor * calls * steps, factor * calls * steps)

    return Entry(key, run, "base")


def failing(key: str, calls: int, failure: Exception) -> Entry:
    """A contestant that runs so many times."""
    left = calls

    def run(steps: int) -> Times:
        nonlocal left
        left -= 1
        if left < 0:
            raise failure
        return Times(steps, 1.0, 1.0)

    return Entry(key, run, "base")


def test_ratio_to_the_base_by_both_clocks() -> None:
    outcome = measure([constant("base", 0.1), constant("slow", 0.25)], Pace(rounds=3, shortest=0.1))
    cost = outcome.costs["slow"]
    assert cost.ratio.median == pytest.approx(2.5)
    assert cost.wall.median == pytest.approx(2.5)
    assert (cost.process_ms, cost.wall_ms) == (pytest.approx(250), pytest.approx(500))
    assert cost.ms == cost.process_ms
    assert cost.rounds == 3
    assert outcome.costs["base"].ratio.median == 1.0


def test_a_slow_minute_hits_all_alike() -> None:
    cost = measure([drifting("base", 1.0), drifting("other", 3.0)], Pace(rounds=5)).costs["other"]
    assert cost.ratio.median == cost.ratio.low == cost.ratio.high == pytest.approx(3.0)


def test_contestants_take_turns() -> None:
    order: list[tuple[str, int]] = []
    measure([constant("base", 1.0, order), constant("a", 1.0, order)], Pace(rounds=2, shortest=0.1))
    warm = 1 + WARM
    assert [key for key, _ in order] == [*["base"] * warm, *["a"] * warm, *["base", "a"] * 2]


def test_steps_of_a_round_fill_the_shortest_stretch_in_whole_intervals() -> None:
    order: list[tuple[str, int]] = []
    entries = [constant("base", 0.01, order), constant("a", 0.01, order, interval=4)]
    measure(entries, Pace(rounds=2, shortest=0.1))
    assert order[-2:] == [("base", 10), ("a", 12)]


def test_a_step_that_looks_closer_now_and_then_does_not_shorten_the_rounds() -> None:
    order: list[int] = []

    def run(steps: int) -> Times:
        order.append(steps)
        seconds = 0.01 if len(order) > 2 and len(order) != 1 + WARM else 1.0
        return Times(steps, seconds * steps, seconds * steps)

    measure([Entry("base", run, "base")], Pace(rounds=2, shortest=0.1))
    assert order[-2:] == [10, 10]


def test_fast_steps_are_not_run_without_end() -> None:
    order: list[tuple[str, int]] = []
    measure([constant("base", 1e-9, order)], Pace(rounds=2, most_steps=50))
    assert order[-1] == ("base", 50)


def test_the_budget_ends_the_rounds_after_two() -> None:
    assert measure([constant("base", 1.0)], Pace(rounds=50, budget=0.0)).costs["base"].rounds == 2


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_whoever_fails_is_out_with_a_reason(calls: int) -> None:
    entries = [constant("base", 1.0), failing("broken", calls, ValueError("no such layer\nmore"))]
    outcome = measure(entries, Pace(rounds=3))
    assert outcome.reasons == {"broken": "ValueError: no such layer"}
    assert set(outcome.costs) == {"base"}


def test_without_its_base_nothing_can_be_said() -> None:
    outcome = measure([failing("base", 0, UnableError("gone")), constant("a", 1.0)], Pace(rounds=2))
    assert outcome.reasons == {"base": "gone", "a": "its base could not run: gone"}
    assert not outcome.costs


def test_whoever_is_too_slow_is_left_out() -> None:
    outcome = measure([constant("base", 0.1), constant("slow", 9.0)], Pace(rounds=2, patience=5.0))
    assert outcome.reasons == {"slow": "too slow: 18 s for 1 steps, left out"}


def test_the_first_stretch_may_take_ten_times_as_long() -> None:
    first = [Times(1, 40.0, 40.0)]

    def run(steps: int) -> Times:
        return first.pop() if first else Times(steps, 0.5 * steps, 0.5 * steps)

    outcome = measure([constant("base", 0.1), Entry("compiled", run, "base")], Pace(rounds=2, patience=5.0))
    assert outcome.costs["compiled"].wall_ms == pytest.approx(500)


def test_on_a_gpu_wall_time_counts() -> None:
    def entry(key: str, seconds: float) -> Entry:
        run: Callable[[int], Times] = lambda steps: Times(steps, seconds * steps, None)  # noqa: E731
        return Entry(key, run, "base")

    cost = measure([entry("base", 0.1), entry("a", 0.2)], Pace(rounds=2)).costs["a"]
    assert cost.process is None
    assert cost.process_ms is None
    assert cost.ratio.median == pytest.approx(2.0)
    assert math.isclose(cost.ms, 200)


def test_reasons_take_one_line() -> None:
    assert reason(RuntimeError("a\nb")) == "RuntimeError: a"
    assert reason(KeyError()) == "KeyError"
    assert len(reason(RuntimeError("x" * 1000))) == 300
    assert reason(UnableError("in words")) == "in words"
