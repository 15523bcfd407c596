"""When something is due: the schedules, their combinations, and what they look like."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cockpit.errors import CockpitError
from cockpit.schedule import Schedule, as_schedule, at, every, log_spaced


def due(schedule: Schedule, until: int = 30) -> list[int]:
    return [t for t in range(until) if schedule(t)]


def odd(step: int) -> bool:
    return step % 2 == 1


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (every(1), [0, 1, 2, 3, 4]),
        (every(2), [0, 2, 4]),
        (every(2, offset=1), [1, 3]),
        (every(10), [0]),
        (every(3, 4), [4]),
        (at(), []),
        (at(3, 1, 3), [1, 3]),
        (every(2) | at(1), [0, 1, 2, 4]),
        (every(2) & at(1, 2), [2]),
        (~every(2), [1, 3]),
        (~(every(2) | at(1)), [3]),
        (every(2) | odd, [0, 1, 2, 3, 4]),
        (every(3) & odd, [3]),
    ],
    ids=repr,
)
def test_steps(schedule: Schedule, steps: list[int]) -> None:
    assert due(schedule, 5) == steps


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (log_spaced(0, 2, 10), [0, 1, 2, 4, 7, 12, 21, 35, 59, 100]),
        (log_spaced(0, 1, 4, init=False), [1, 2, 4, 10]),
        (log_spaced(0, 3, 4), [0, 1, 10, 100, 1000]),
        (log_spaced(0, 5, 6, base=2), [0, 1, 2, 4, 8, 16, 32]),
        (log_spaced(2, 2, 1, init=False), [100]),
    ],
    ids=repr,
)
def test_spaced_evenly_in_the_exponent(schedule: Schedule, steps: list[int]) -> None:
    assert due(schedule, 1500) == steps


@pytest.mark.parametrize("base", [2, 3, 5, 7, 10])
def test_whole_powers_are_hit(base: int) -> None:
    """A grid point of 124.99999999999999 is 125."""
    schedule = log_spaced(0, 6, 7, base=base, init=False)
    assert all(schedule(base**k) for k in range(7))
    assert not schedule(0)


def test_the_paper_s_default_has_300_points_at_most() -> None:
    steps = due(log_spaced(0, 19, 300, base=2), 2**19 + 1)
    assert steps[:4] == [0, 1, 2, 3]
    assert steps[-1] == 2**19
    assert 200 < len(steps) <= 301


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 400))
def test_every_is_an_arithmetic_progression(interval: int, offset: int, step: int) -> None:
    assert every(interval, offset)(step) == (step in range(offset, 1000, interval))


steps_sets = st.frozensets(st.integers(0, 9))


@given(steps_sets, steps_sets)
def test_combinations_are_those_of_sets(a: frozenset[int], b: frozenset[int]) -> None:
    assert set(due(at(*a) | at(*b), 10)) == a | b
    assert set(due(at(*a) & at(*b), 10)) == a & b
    assert set(due(~at(*a), 10)) == set(range(10)) - a


@pytest.mark.parametrize(
    "schedule", [every(2), at(1), every(2) | at(1), every(2) & at(2), ~at(1), log_spaced(0, 1, 3)], ids=repr
)
def test_answers_are_bools_and_schedules_can_be_pickled(schedule: Schedule) -> None:
    assert {type(schedule(t)) for t in range(5)} == {bool}
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert repr(again) == repr(schedule)
    assert due(again) == due(schedule)
    assert len({schedule, again}) == 1


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (every(5), "every(5)"),
        (every(5, 2), "every(5, offset=2)"),
        (at(3, 1), "at(1, 3)"),
        (every(5) | at(1), "every(5) | at(1)"),
        (every(5) & at(1), "(every(5)) & (at(1))"),
        (~every(5), "~(every(5))"),
        ((every(5) | at(1)) & ~at(0), "(every(5) | at(1)) & (~(at(0)))"),
        (log_spaced(0, 2, 10), "log_spaced(0, 2, 10, base=10, init=True)"),
        (as_schedule(odd), "custom(odd)"),
    ],
)
def test_a_schedule_prints_what_was_written(schedule: Schedule, text: str) -> None:
    assert repr(schedule) == text
    if not text.startswith("custom"):
        names: dict[str, Any] = {"every": every, "at": at, "log_spaced": log_spaced}
        assert due(eval(text, names), 120) == due(schedule, 120)


def test_what_counts_as_a_schedule() -> None:
    schedule = every(3)
    assert as_schedule(schedule) is schedule
    assert as_schedule(7) == every(7)
    assert due(as_schedule(odd), 6) == [1, 3, 5]
    truthy = as_schedule(lambda t: np.int64(t))
    assert [truthy(0), truthy(3)] == [False, True]


@pytest.mark.parametrize("wrong", ["often", None, 0.5, True, [1, 2]])
def test_what_does_not(wrong: object) -> None:
    with pytest.raises(CockpitError, match="a schedule is"):
        as_schedule(wrong)


@pytest.mark.parametrize("wrong", [0, -3, 2.5, "5"])
def test_intervals_are_whole_and_positive(wrong: Any) -> None:
    with pytest.raises(CockpitError, match="at least 1"):
        every(wrong)
    if isinstance(wrong, int):
        with pytest.raises(CockpitError):
            as_schedule(wrong)
