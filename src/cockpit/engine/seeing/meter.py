"""Meter: how long our own code has kept the training's threads busy."""

from __future__ import annotations

import time

OFTEN = 2.0
"""Seconds between two times that a share is news."""

LONG = 2.0
"""Seconds of our own at one step that the user should be told of."""


class Meter:
    """Adds up the time of the blocks entered; a block within another counts once.

    It is the time of the host. On a GPU, where kernels run beside it, watching may cost less than that, or more.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._depth = 0
        self._entered = self._first = self._told = self._lapped = 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._entered = time.perf_counter()
            self._first = self._first or self._entered
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.spent += time.perf_counter() - self._entered

    @property
    def share(self) -> float | None:
        """The time spent, divided by what the training would have taken without; None before the first block."""
        without = time.perf_counter() - self._first - self.spent
        return self.spent / without if self._first and without > 0 else None

    def news(self) -> float | None:
        """Return the share, but only from time to time."""
        now = time.perf_counter()
        if now - self._told < OFTEN:
            return None
        self._told = now
        return self.share

    def lap(self) -> float | None:
        """Return the time spent since the last call, if that is long."""
        spent, self._lapped = self.spent - self._lapped, self.spent
        return spent if spent >= LONG else None
