"""When a quantity is due: small values that are called with a step, printed, combined and stored with the run.

>>> [t for t in range(12) if every(5)(t)]
[0, 5, 10]
>>> [t for t in range(200) if log_spaced(0, 2, 10)(t)]
[0, 1, 2, 4, 7, 12, 21, 35, 59, 100]
>>> soon = every(4) | at(1, 2)
>>> [t for t in range(10) if soon(t)]
[0, 1, 2, 4, 8]
>>> soon
every(4) | at(1, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cockpit.errors import CockpitError


class Schedule:
    """A set of steps; combine with ``|`` (either), ``&`` (both) and ``~`` (not)."""

    def __call__(self, step: int) -> bool:
        """Say whether something is due at a step (counted from 0)."""
        raise NotImplementedError

    def __or__(self, other: Callable[[int], bool]) -> Schedule:
        return Either(self, as_schedule(other))

    def __and__(self, other: Callable[[int], bool]) -> Schedule:
        return Both(self, as_schedule(other))

    def __invert__(self) -> Schedule:
        return Not(self)


@dataclass(frozen=True, repr=False)
class Every(Schedule):
    """Steps ``offset``, ``offset + interval`` and so on."""

    interval: int
    offset: int = 0

    def __call__(self, step: int) -> bool:
        """Look up in constant time."""
        return step >= self.offset and (step - self.offset) % self.interval == 0

    def __repr__(self) -> str:
        return f"every({self.interval}{f', offset={self.offset}' if self.offset else ''})"


@dataclass(frozen=True, repr=False)
class At(Schedule):
    """A fixed set of steps."""

    steps: frozenset[int]
    text: str = field(default="", compare=False)

    def __call__(self, step: int) -> bool:
        """Look up in constant time."""
        return step in self.steps

    def __repr__(self) -> str:
        return self.text or f"at({', '.join(map(str, sorted(self.steps)))})"


@dataclass(frozen=True, repr=False)
class Either(Schedule):
    """Due when one of two is."""

    a: Schedule
    b: Schedule

    def __call__(self, step: int) -> bool:
        """Ask both."""
        return self.a(step) or self.b(step)

    def __repr__(self) -> str:
        return f"{self.a!r} | {self.b!r}"


@dataclass(frozen=True, repr=False)
class Both(Schedule):
    """Due when two are."""

    a: Schedule
    b: Schedule

    def __call__(self, step: int) -> bool:
        """Ask both."""
        return self.a(step) and self.b(step)

    def __repr__(self) -> str:
        return f"({self.a!r}) & ({self.b!r})"


@dataclass(frozen=True, repr=False)
class Not(Schedule):
    """Due when another is not."""

    a: Schedule

    def __call__(self, step: int) -> bool:
        """Negate."""
        return not self.a(step)

    def __repr__(self) -> str:
        return f"~({self.a!r})"


@dataclass(frozen=True, repr=False)
class Custom(Schedule):
    """A callable of the user's, step → bool."""

    function: Callable[[int], Any]

    def __call__(self, step: int) -> bool:
        """Ask the callable."""
        return bool(self.function(step))

    def __repr__(self) -> str:
        return f"custom({getattr(self.function, '__qualname__', repr(self.function))})"


def every(interval: int, offset: int = 0) -> Schedule:
    """Return the schedule ``offset``, ``offset + interval`` and so on."""
    if not isinstance(interval, int) or interval < 1:
        raise CockpitError(f"every({interval!r}): the interval is a whole number of steps, at least 1")
    return Every(interval, offset)


def at(*steps: int) -> Schedule:
    """Return a schedule of single steps."""
    return At(frozenset(steps))


def log_spaced(start: float, end: float, steps: int = 300, base: float = 10, init: bool = True) -> Schedule:
    """Return ``steps`` steps spaced evenly in the exponent, from ``base**start`` to ``base**end``.

    Equal numbers are merged; ``init`` adds step 0.
    """
    grid = np.logspace(start, end, steps, base=base)
    # Grid points that are whole numbers up to rounding must not be truncated to the number below.
    whole = np.where(np.isclose(grid, np.rint(grid), rtol=1e-12), np.rint(grid), grid).astype(np.int64)
    chosen = frozenset(int(k) for k in whole) | (frozenset({0}) if init else frozenset())
    return At(chosen, f"log_spaced({start}, {end}, {steps}, base={base}, init={init})")


def as_schedule(when: object) -> Schedule:
    """Accept a schedule, a number of steps, or any callable."""
    if isinstance(when, Schedule):
        return when
    if isinstance(when, int) and not isinstance(when, bool):
        return every(when)
    if callable(when):
        return Custom(when)
    raise CockpitError(
        f"a schedule is every(n), log_spaced(…), a number or a callable step -> bool, not {when!r}"
    )
