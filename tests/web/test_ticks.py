"""Pages hear of every change, and nobody watches while nobody listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from cockpit.errors import CockpitError
from cockpit.web.ticks import MOST, Ticks


class Runs:
    """Sequence numbers, and how often they were asked for."""

    def __init__(self) -> None:
        self.now: dict[str, int] | Exception = {"a": 1}
        self.asked = 0

    def __call__(self) -> dict[str, int]:
        self.asked += 1
        if isinstance(self.now, Exception):
            raise self.now
        return dict(self.now)


def running(test: Callable[[Runs], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(Runs()), 20))


async def event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    """Return the next event, with its number."""
    async for text in stream:
        lines = text.decode().splitlines()
        if lines[0].startswith("id: "):
            assert text.endswith(b"\n\n")
            return lines[0][4:], json.loads(lines[1].removeprefix("data: "))["runs"]
    raise AssertionError("the stream has ended")


def test_now_and_after_every_change() -> None:
    async def test(runs: Runs) -> None:
        stream = Ticks(runs, 0.01).stream()
        number, state = await event(stream)
        assert state == {"a": 1}
        runs.now = {"a": 1, "b": 5}
        later, state = await event(stream)
        assert state == {"a": 1, "b": 5}
        assert int(later) == int(number) + 1
        await stream.aclose()  # type: ignore[attr-defined]

    running(test)


def test_one_watch_for_all_that_ends_with_the_last() -> None:
    async def test(runs: Runs) -> None:
        ticks = Ticks(runs, 0.02)
        streams = [ticks.stream() for _ in range(5)]
        for stream in streams:
            await event(stream)
        runs.asked = 0
        await asyncio.sleep(0.2)
        assert 2 <= runs.asked <= 11
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.03)
        runs.asked = 0
        await asyncio.sleep(0.1)
        assert runs.asked == 0

    running(test)


def test_going_on_where_it_broke_off() -> None:
    async def test(runs: Runs) -> None:
        ticks = Ticks(runs, 0.01)
        stream = ticks.stream()
        number, _ = await event(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        again = ticks.stream(number)
        following = asyncio.ensure_future(event(again))
        await asyncio.sleep(0.1)
        assert not following.done()  # nothing has happened meanwhile
        runs.now = {"a": 2}
        assert (await following)[1] == {"a": 2}
        await again.aclose()  # type: ignore[attr-defined]
        runs.now = {"a": 3}
        missed = ticks.stream(number)
        assert (await event(missed))[1] == {"a": 3}
        await missed.aclose()  # type: ignore[attr-defined]
        other = Ticks(runs, 0.01).stream("no number of ours")
        assert (await event(other))[1] == {"a": 3}
        await other.aclose()  # type: ignore[attr-defined]

    running(test)


def test_a_slow_page_gets_the_newest_state_only() -> None:
    async def test(runs: Runs) -> None:
        stream = Ticks(runs, 0.01).stream()
        await event(stream)
        for k in range(5):
            runs.now = {"a": 10 + k}
            await asyncio.sleep(0.05)
        assert (await event(stream))[1] == {"a": 14}
        await stream.aclose()  # type: ignore[attr-defined]

    running(test)


def test_so_many_streams_and_no_more() -> None:
    """A browser that spent all its connections on streams could not fetch anything."""

    async def test(runs: Runs) -> None:
        ticks = Ticks(runs, 0.01)
        streams = [ticks.stream() for _ in range(MOST)]
        for stream in streams:
            assert not ticks.full
            await event(stream)
        assert ticks.full
        await streams[0].aclose()  # type: ignore[attr-defined]
        assert not ticks.full
        for stream in streams[1:]:
            await stream.aclose()  # type: ignore[attr-defined]

    running(test)


def test_signs_of_life() -> None:
    async def test(runs: Runs) -> None:
        stream = Ticks(runs, 0.01, heartbeat=0.05).stream()
        await event(stream)
        assert (await anext(stream)) == b": still here\n\n"
        assert (await anext(stream)).startswith(b":")
        await stream.aclose()  # type: ignore[attr-defined]

    running(test)


def test_the_end() -> None:
    async def test(runs: Runs) -> None:
        ticks = Ticks(runs, 0.01)
        stream = ticks.stream()
        await event(stream)
        ended = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0.02)
        ticks.close()
        assert await ended is None

    running(test)


@pytest.mark.parametrize("error", [OSError("the disk is gone"), CockpitError("cannot be read")], ids=repr)
def test_a_failure_is_only_a_pause(error: Exception) -> None:
    async def test(runs: Runs) -> None:
        stream = Ticks(runs, 0.01).stream()
        await event(stream)
        runs.now = error
        await asyncio.sleep(0.05)
        runs.now = {"a": 2}
        assert (await event(stream))[1] == {"a": 2}
        await stream.aclose()  # type: ignore[attr-defined]

    running(test)
