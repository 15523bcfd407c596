from __future__ import annotations

import doctest
import pickle

import pytest

from cockpit.legacy.utils import schedules
from cockpit.legacy.utils.schedules import linear, logarithmic


@pytest.mark.parametrize(
    ("interval", "offset", "wanted"), [(4, 0, [0, 4, 8]), (4, 3, [3, 7, 11]), (1, 9, [9, 10, 11])]
)
def test_linear(interval: int, offset: int, wanted: list[int]) -> None:
    assert [t for t in range(-8, 12) if linear(interval, offset)(t)] == wanted


def test_logarithmic() -> None:
    assert [t for t in range(-5, 200) if logarithmic(0, 2, 10)(t)] == [0, 1, 2, 4, 7, 12, 21, 35, 59, 100]
    assert [t for t in range(200) if logarithmic(0, 1, 4, init=False)(t)] == [1, 2, 4, 10]
    assert [t for t in range(200) if logarithmic(0, 5, steps=6, base=2)(t)] == [0, 1, 2, 4, 8, 16, 32]


def test_schedules_answer_with_bools_and_can_be_pickled() -> None:
    for schedule in (linear(2), logarithmic(0, 1, 4)):
        assert type(schedule(4)) is bool
        assert pickle.loads(pickle.dumps(schedule))(4)


def test_examples_in_the_documentation() -> None:
    assert doctest.testmod(schedules).attempted == 3
    assert doctest.testmod(schedules).failed == 0
