"""Timing steps, without ever waiting for a device.

A step lasts from the end of the optimiser's last step to the end of this one. It is cut where its first backward pass
is about to run: ``before`` holds the forward pass, but also data loading, evaluations and checkpoints of the user's;
``inside`` holds backward pass and optimiser. Where nobody announces the backward pass (an attached loop), ``inside`` is
the whole step.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments, and says later how long it took from one to another."""

    def mark(self) -> Any:
        """Return the present moment; None if it cannot be marked."""

    def between(self, a: Any, b: Any) -> float | None:
        """Return the seconds between two marks, the earlier one first; None if that is not known yet."""


class HostClock:
    """The clock on the wall."""

    def mark(self) -> float:
        """Return the seconds since some moment."""
        return time.perf_counter()

    def between(self, a: float, b: float) -> float:
        """Subtract."""
        return b - a


class DeviceClock:
    """Events in the default stream of a CUDA device: each comes when the work before it is done, nobody waits for it.

    (The current stream takes longer to ask for than an event to record. Where a training runs in another one, the
    default stream is idle, and what is measured is the time of the host.)
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.default_stream(device)

    def mark(self) -> torch.cuda.Event | None:
        """Record an event behind all work handed out so far."""
        if torch.cuda.is_current_stream_capturing():  # an event would become part of the user's graph
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def between(self, a: torch.cuda.Event, b: torch.cuda.Event) -> float | None:
        """Return the seconds on the device's time line, once it has come to the second."""
        return a.elapsed_time(b) / 1000 if b.query() else None


def clock_for(device: torch.device) -> Clock:
    """Return the clock that sees the work done on a device."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()


@dataclass(frozen=True)
class Timed:
    """How long a step took, in seconds."""

    label: Any
    inside: float
    before: float | None = None
    """None where it is not known, or part of ``inside``."""
    cut: bool = False
    """Whether ``inside`` begins with the backward pass."""


class Stopwatch:
    """Times one step after the other; what was timed is handed out in order, when it is known."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: Any = None
        self._cut: Any = None
        self._running: deque[tuple[Any, Any, Any, Any]] = deque()

    def cut(self) -> None:
        """Note that the first backward pass of the step is about to run (further ones are ignored)."""
        if self._cut is None:
            self._cut = self._clock.mark()

    def end(self, label: Any) -> bool:
        """Note that the step is over; return whether its time will be known."""
        now = self._clock.mark()
        timed = now is not None and (self._last is not None or self._cut is not None)
        if timed:
            self._running.append((label, self._last, self._cut, now))
        self._last, self._cut = now, None
        return timed

    def forget(self) -> None:
        """Leave out the step in progress."""
        self._last = self._cut = None

    def done(self) -> list[Timed]:
        """Return the steps whose times have become known since the last call."""
        found = []
        while self._running:
            label, last, cut, now = self._running[0]
            inside = self._clock.between(last if cut is None else cut, now)
            if inside is None:
                break
            before = None if cut is None or last is None else self._clock.between(last, cut)
            found.append(Timed(label, inside, before, cut is not None))
            self._running.popleft()
        return found
