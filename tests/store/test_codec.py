"""Arrays come back as they were packed; what a hostile file claims is refused before it fills the memory."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cockpit.errors import CockpitError
from cockpit.store.codec import pack_array, pack_steps, unpack_array, unpack_steps


@given(
    arrays.arrays(st.sampled_from(["f8", "f4", "i8", "u2", "?"]), arrays.array_shapes(min_dims=0, min_side=0))
)
def test_arrays_come_back(values: np.ndarray) -> None:
    back = unpack_array(*pack_array(values))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_a_bomb_is_not_unpacked() -> None:
    data = zlib.compress(bytes(50 * 2**20), 9)
    tracemalloc.start()
    with pytest.raises(CockpitError, match="damaged"):
        unpack_array(">f8", "[4]", data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    "shape", ["[3]", "[-1]", "[-2, -1]", "[99999999999999999999]", '"x"', "[2.0]", "2", "[]"]
)
def test_shapes_that_do_not_fit_are_refused(shape: str) -> None:
    with pytest.raises(CockpitError, match="damaged"):
        unpack_array(">f8", shape, zlib.compress(bytes(16)))


def test_what_is_not_compressed_is_refused() -> None:
    with pytest.raises(CockpitError, match="damaged"):
        unpack_array(">f8", "[2]", bytes(16))


@given(st.sets(st.integers(-(2**62), 2**62), min_size=1, max_size=6))
def test_steps_come_back(found: set[int]) -> None:
    steps = np.array(sorted(found), dtype=np.int64)
    packed = pack_steps(steps), int(steps[0]), int(steps[-1]), len(steps)
    np.testing.assert_array_equal(unpack_steps(*packed), steps)


def test_even_steps_up_to_the_last_there_is() -> None:
    steps = np.arange(2**63 - 50, 2**63 - 1, 7, dtype=np.int64)
    assert pack_steps(steps) is None
    np.testing.assert_array_equal(unpack_steps(None, int(steps[0]), int(steps[-1]), len(steps)), steps)
