"""Schedules: callables that say for the number of a step whether to track it."""

from __future__ import annotations

from cockpit.schedule import Schedule, every, log_spaced


def linear(interval: int, offset: int = 0) -> Schedule:
    """Track at ``offset + n * interval`` for n = 0, 1, ….

    >>> [t for t in range(12) if linear(4, offset=2)(t)]
    [2, 6, 10]
    """
    return every(interval, offset)


def logarithmic(start: float, end: float, steps: int = 300, base: float = 10, init: bool = True) -> Schedule:
    """Track at ``steps`` points spaced evenly in the exponent, from ``base**start`` to ``base**end``.

    Args:
        start: the first exponent.
        end: the last exponent.
        steps: number of points; equal ones are merged.
        base: the base.
        init: whether step 0 is tracked, too.

    >>> [t for t in range(200) if logarithmic(0, 2, 10)(t)]
    [0, 1, 2, 4, 7, 12, 21, 35, 59, 100]
    >>> [t for t in range(200) if logarithmic(0, 1, 4, init=False)(t)]
    [1, 2, 4, 10]
    """
    return log_spaced(start, end, steps, base, init)
