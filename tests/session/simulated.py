"""Simulated trainings with a clock of their own, under a budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cockpit import GradHist1d, HessMaxEV, Loss, NormTest
from cockpit.quantities.quantity import Quantity
from cockpit.session.budget import Budget

COSTS = {"loss": 0.001, "alpha": 0.5, "norm_test": 0.4, "grad_hist1d": 1.5, "hess_max_ev": 8.0}
"""Extra time of a step in which this is the dearest quantity; an unwatched step takes 1."""


@dataclass
class FakeClock:
    """Time that passes when it is told to; with a lag it is known only some marks later, as on a device."""

    lag: int = 0
    now: float = 0.0
    marks: int = 0

    def mark(self) -> tuple[int, float]:
        self.marks += 1
        return self.marks, self.now

    def between(self, a: tuple[int, float], b: tuple[int, float]) -> float | None:
        return b[1] - a[1] if self.marks >= b[0] + self.lag else None


@dataclass
class Training:
    """A training of which only the times are real."""

    limit: float = 0.05
    quantities: Sequence[Quantity] = field(
        default_factory=lambda: [HessMaxEV(), GradHist1d(), NormTest(), Loss()]
    )
    costs: dict[str, float] = field(default_factory=lambda: dict(COSTS))
    lag: int = 0
    noise: float = 0.0
    pause: tuple[int, float] = (1, 0.0)  # every so many steps, so long
    once: float = 0.0
    announced: bool = True  # whether backward passes are
    after: float = 0.5  # what the step costs that alpha waits for
    pace: Callable[[int], float] = lambda t: 1.0
    tail: tuple[float, float] = (0.0, 1.0)  # so often a measurement costs so many times more
    wake: float = 0.0  # what the first unwatched step after measured ones costs
    standing: float = 0.0
    agree: Callable[[list[int]], list[int]] | None = None
    rests: bool = False  # whether it asks for how long it may

    def __post_init__(self) -> None:
        self.clock = FakeClock(self.lag)
        self.budget = Budget(self.limit, self.quantities, self.clock, self.agree)
        self.random = random.Random(1)
        self.measured: dict[str, list[int]] = {q.name: [] for q in self.quantities}
        self.extra: list[float] = []
        self.usual: list[float] = []
        self.waiting = self.watched = False
        self.resting = self.asleep = 0

    def step(self) -> None:
        t = len(self.extra)
        if self.rests and not self.resting and t and not self.waiting and not self.watched:
            self.resting = self.asleep = self.budget.rest(t)
        if self.resting:
            usual = self.pace(t)
            self.clock.now += usual + 0.1 * self.standing
            self.extra.append(0.1 * self.standing)
            self.usual.append(usual)
            self.resting -= 1
            if not self.resting:
                self.budget.rested(self.asleep)
            return
        due = self.budget.plan(t, [q for q in self.quantities if q.when(t)])
        usual = self.pace(t) * (1 + self.random.uniform(-self.noise, self.noise))
        extra = max((self.costs[q.name] for q in due), default=0.0)
        if self.random.random() < self.tail[0]:
            extra *= self.tail[1]
        extra += self.waiting * self.after + self.standing
        extra += self.once * sum(not self.measured[q.name] for q in due)
        extra += self.wake * (self.watched and not due and not self.waiting)
        self.watched = bool(due) or self.waiting
        self.waiting = any(q.needs_after for q in due)
        if t % self.pause[0] == 0:
            self.clock.now += self.pause[1]
        self.clock.now += 0.3 * usual
        if self.announced:
            self.budget.entered()
        self.clock.now += 0.7 * usual + extra
        self.budget.ended(seen=True)
        self.budget.paid(self.standing)
        for q in due:
            self.measured[q.name].append(t)
        self.extra.append(extra)
        self.usual.append(usual)

    def run(self, steps: int) -> Training:
        for _ in range(steps):
            self.step()
        return self

    def share(self, start: int = 0) -> float:
        """What really was spent since a step."""
        return sum(self.extra[start:]) / sum(self.usual[start:])

    def counts(self, start: int = 0) -> list[int]:
        """How often each quantity was measured, from cheap to dear."""
        found = {name: sum(t >= start for t in steps) for name, steps in self.measured.items()}
        return [found[name] for name in sorted(found, key=COSTS.__getitem__)]
