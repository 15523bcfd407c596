"""Measures contestants in rounds, A B C A B C …, so that a slow minute hits all of them alike.

Each round gives every contestant the ratio of its time per step to that of the base of the same round; what
is reported is the median of these ratios and their quartiles.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cockpit.bench.clock import Times


class UnableError(Exception):
    """A contestant cannot run; its text is the reason, in words."""


@dataclass(frozen=True)
class Entry:
    """A contestant: how to run some steps of it, and whose time per step it is compared with.

    ``interval``: it does its work at every so many steps, so a round holds a multiple of them. A run that raises
    takes the contestant out; the exception becomes its reason.
    """

    key: str
    run: Callable[[int], Times]
    base: str
    interval: int = 1


@dataclass(frozen=True)
class Pace:
    """How long to measure.

    Attributes:
        rounds: at most so many, and at least two.
        shortest: seconds that a contestant runs in a round, at least; its steps are chosen so.
        budget: seconds after which no new round begins.
        patience: who needs more seconds for a stretch is left out, and who needs ten times as many for the first one,
            which examines and compiles.
        most_steps: steps of a contestant in a round, at most (or one interval).
    """

    rounds: int = 7
    shortest: float = 0.3
    budget: float = 60.0
    patience: float = math.inf
    most_steps: int = 500


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """What a contestant costs: milliseconds per step (median) and the ratio to its base, by both clocks."""

    wall_ms: float
    wall: Spread
    process_ms: float | None
    process: Spread | None
    rounds: int
    steps: int

    @property
    def ratio(self) -> Spread:
        """The ratio by the clock that counts."""
        return self.wall if self.process is None else self.process

    @property
    def ms(self) -> float:
        """Milliseconds by the clock that counts."""
        return self.wall_ms if self.process_ms is None else self.process_ms


@dataclass
class Outcome:
    """What is known at the end: the costs, and for those that could not run, why."""

    costs: dict[str, Cost] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def measure(entries: Sequence[Entry], pace: Pace, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Warm up, find out how many steps make a round, and run the rounds."""
    outcome = Outcome()
    start = time.monotonic()
    steps: dict[str, int] = {}
    for entry in entries:
        say(f"warming up {entry.key}")
        times = _warmed_up(entry, pace, outcome)
        if times is not None:
            repeats = math.ceil(pace.shortest / max(times.seconds, 1e-9))
            most = max(1, pace.most_steps // entry.interval)
            steps[entry.key] = entry.interval * min(most, max(1, repeats))
    seen: dict[str, list[Times]] = {key: [] for key in steps}
    done = 0
    while done < pace.rounds and (done < 2 or time.monotonic() - start < pace.budget):
        done += 1
        say(f"round {done} of {pace.rounds}")
        for entry in entries:
            if entry.key not in outcome.reasons:
                times = _tried(entry, steps[entry.key], outcome)
                seen[entry.key] += [] if times is None else [times]
    for entry in entries:
        if entry.key in outcome.reasons:
            continue
        if entry.base in outcome.reasons:
            outcome.reasons[entry.key] = f"its base could not run: {outcome.reasons[entry.base]}"
        else:
            outcome.costs[entry.key] = _cost(seen[entry.key], seen[entry.base])
    return outcome


WARM = 40
"""Stretches before those that count: first ones examine, compile and record what later ones repeat.

What is examined again at the 8th, 16th and 32nd time, as a training of thousands of steps hardly notices, is over then.
"""
LEAST = 5
"""So many of them are run unless they take all of the budget, the rest unless they take a quarter of it."""


def _warmed_up(entry: Entry, pace: Pace, outcome: Outcome) -> Times | None:
    """Run some stretches, fewer if they take long; return the times of the fastest of the last ones."""
    last, start = list[Times](), 0.0
    for k in range(1 + WARM):
        if k > 1 and time.monotonic() - start > (pace.budget if k <= LEAST else pace.budget / 4):
            break
        times = _tried(entry, entry.interval, outcome)
        if times is None:
            return None
        if times.wall > (pace.patience if k else 10 * pace.patience):
            outcome.reasons[entry.key] = f"too slow: {times.wall:.0f} s for {times.steps} steps, left out"
            return None
        start = start or time.monotonic()
        last = [*last[1 - LEAST :], times]
    return min(last, key=lambda times: times.seconds)


def _tried(entry: Entry, steps: int, outcome: Outcome) -> Times | None:
    try:
        return entry.run(steps)
    except Exception as failure:  # whatever a contestant raises is a result of the comparison
        outcome.reasons[entry.key] = reason(failure)
        return None


def reason(failure: Exception) -> str:
    """Return an exception in one line."""
    if isinstance(failure, UnableError):
        return str(failure)
    lines = str(failure).strip().splitlines() or [""]
    text = f"{type(failure).__name__}: {lines[0]}" if lines[0] else type(failure).__name__
    return text if len(text) <= 300 else f"{text[:299]}…"


def _cost(own: Sequence[Times], base: Sequence[Times]) -> Cost:
    pairs = list(zip(own, base, strict=True))
    wall = [a.wall / a.steps / (b.wall / b.steps) for a, b in pairs]
    wall_ms = statistics.median(1e3 * a.wall / a.steps for a in own)
    process = [
        a.process / a.steps / (b.process / b.steps)
        for a, b in pairs
        if a.process is not None and b.process is not None and b.process > 0
    ]
    known = [1e3 * a.process / a.steps for a in own if a.process is not None]
    return Cost(
        wall_ms,
        spread(wall),
        statistics.median(known) if process else None,
        spread(process) if process else None,
        len(pairs),
        own[0].steps,
    )


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)
