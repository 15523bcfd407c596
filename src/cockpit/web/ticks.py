"""Ticks: tells pages that a run has grown, by server-sent events; they fetch the data themselves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread

from cockpit.errors import CockpitError

INTERVAL = 0.2
"""Seconds between two looks at the runs."""

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that proxies do not take the connection for dead."""


MOST = 4
"""Streams at once: a browser opens six connections to a server, and a window without one could not even ask."""


class Ticks:
    """One watch over the sequence numbers of all runs, for all pages; nobody watches while no page listens.

    Args:
        read: gives the sequence numbers; called in a thread of its own.
        interval: seconds between two calls.
        heartbeat: seconds of silence before a sign of life.
    """

    def __init__(
        self, read: Callable[[], dict[str, int]], interval: float = INTERVAL, heartbeat: float = HEARTBEAT
    ):
        self._read = read
        self._interval = interval
        self._heartbeat = heartbeat
        self._state: dict[str, int] | None = None
        # the number of the latest change; another server on this port would begin elsewhere
        self._number = time.time_ns() // 1_000_000
        self._fresh = False
        self._changed = asyncio.Event()
        self._listeners = 0
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether there are as many streams as there may be; further pages ask from time to time instead."""
        return self._listeners >= MOST

    async def stream(self, last: str = "") -> AsyncIterator[bytes]:
        """Yield the sequence numbers now and after every change, and signs of life; ``last`` is what was seen."""
        async with self._listening():
            yield b"retry: 1000\n\n"
            while not self._closed:
                changed = self._changed
                if self._fresh and str(self._number) != last:
                    last = str(self._number)
                    yield f"id: {last}\ndata: {json.dumps({'runs': self._state})}\n\n".encode()
                    continue  # it may have changed while that was on its way
                with anyio.move_on_after(self._heartbeat) as silence:
                    await changed.wait()
                if silence.cancelled_caught:
                    yield b": still here\n\n"

    def close(self) -> None:
        """End all streams; to be called in the event loop."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        self._listeners += 1
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_again_and_again())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and self._watch is not None:
                self._watch.cancel()
                self._watch, self._fresh = None, False

    async def _look_again_and_again(self) -> None:
        limiter = anyio.CapacityLimiter(1)  # its own: it must not wait behind charts
        state: dict[str, int] = {}
        while True:
            with suppress(OSError, CockpitError):  # a folder that went away may come back
                state = await anyio.to_thread.run_sync(self._read, limiter=limiter)
            if state != self._state or not self._fresh:
                self._number += state != self._state
                self._state, self._fresh = state, True
                self._wake()
            await asyncio.sleep(self._interval)
