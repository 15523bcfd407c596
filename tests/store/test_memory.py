"""What is kept never exceeds the limit, and what is used stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cockpit.store.memory import Memory


def test_the_least_recently_used_goes() -> None:
    memory = Memory(100)
    memory.put("a", 1, 40)
    memory.put("b", 2, 40)
    assert memory.get("a") == 1
    memory.put("c", 3, 40)
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (1, None, 3)
    memory.put("a", 4, 10)
    assert (memory.get("a"), memory.size) == (4, 50)


def test_what_is_too_large_is_not_kept() -> None:
    memory = Memory(100)
    memory.put("a", 1, 50)
    memory.put("b", 2, 101)
    memory.put("a", 1, 101)
    assert (memory.get("a"), memory.get("b"), memory.size) == (None, None, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60))))
def test_size_is_that_of_what_is_kept(puts: list[tuple[int, int]]) -> None:
    memory, sizes = Memory(100), {}
    for key, size in puts:
        memory.put(key, key, size)
        sizes[key] = size
        assert memory.size <= 100
    assert memory.size == sum(size for key, size in sizes.items() if memory.get(key) is not None)
