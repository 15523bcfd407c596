"""The cost of tracking at every k-th step, put together where k steps would take too long to measure."""

from __future__ import annotations

from cockpit.bench.rounds import Cost, Spread


def composed(known: Cost, interval: int, idle: Cost, longer: int) -> Cost:
    """Return the cost at a longer interval: one stretch of the known interval, and idle steps for the rest.

    With ratios r_m at interval m and r_0 of idle steps, r_k = (m r_m + (k − m) r_0) / k. Quartiles are combined alike,
    which is exact for the median of a constant machine and wide for the spread.
    """

    def mixed(a: float, b: float) -> float:
        return (interval * a + (longer - interval) * b) / longer

    def spread(a: Spread, b: Spread) -> Spread:
        return Spread(mixed(a.median, b.median), mixed(a.low, b.low), mixed(a.high, b.high))

    process_ms, process = None, None
    if known.process_ms is not None and idle.process_ms is not None:
        process_ms = mixed(known.process_ms, idle.process_ms)
    if known.process is not None and idle.process is not None:
        process = spread(known.process, idle.process)
    return Cost(
        mixed(known.wall_ms, idle.wall_ms),
        spread(known.wall, idle.wall),
        process_ms,
        process,
        min(known.rounds, idle.rounds),
        longer,
    )
