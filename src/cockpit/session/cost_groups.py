"""Quantities grouped by what they cost, and how a budget is spread over the groups.

Costs are in units of an unwatched step: a cost of 2 makes a step three times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from cockpit.engine.needs import Diagonal, DiagonalVariance, Known, Need, TopEigenvalue
from cockpit.engine.statistics import Elementwise, Join
from cockpit.quantities.quantity import Quantity

FIRST = 11
"""Steps to wait before a group is measured again, times its rank, as long as its cost is not known. (No round number:
see `_irregular`.)"""
FIRM = 3
"""Measurements after which one odd measurement can no longer mislead."""
DOUBT = 7
"""By how much an interval may grow with each measurement until then."""
SMALL = 0.25
LONGEST = 10**9


@dataclass(eq=False)
class Group:
    """Quantities that are due together and need the same kind of work, so that one interval serves them all."""

    quantities: list[Quantity]
    name: str
    """The names of its quantities."""
    interval: int
    last: int | None = None
    """The step it was last measured at."""
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=7))
    """What the last steps cost in which nothing dearer was measured, one-time costs left out."""
    fresh: bool = True
    """Whether the next measurement is the first of this process, with all its one-time costs."""
    wanted: int = 0
    """Steps at which its own schedule wanted it."""
    reference: int = -1
    same: int = 0
    told: int | None = None
    """The interval last reported."""

    @property
    def cost(self) -> float | None:
        """The cost of a measured step: the mean without the extremes, of one or two the larger; None: not known."""
        found = sorted(self.costs)
        if len(found) >= FIRM:
            inner = found[1:-1]
            return sum(inner) / len(inner)
        return found[-1] if found else None

    @property
    def small(self) -> bool:
        """Whether its cost is so small that the pace of the training must be known exactly to tell it."""
        cost = self.cost
        return cost is not None and cost < SMALL

    def add(self, cost: float, reference: int) -> None:
        """Take in the cost of an episode.

        Small costs found by comparison with the same unwatched steps (``reference``) err together: they are one.
        """
        if self.small and reference == self.reference and cost < 1:
            self.same += 1
            self.costs[-1] += (cost - self.costs[-1]) / self.same
        else:
            self.reference, self.same = reference, 1
            self.costs.append(cost)

    def ready(self, step: int) -> bool:
        """Say whether its interval is used up."""
        return self.last is None or step >= self.last + self.interval

    def limited(self, interval: int) -> int:
        """Bound an interval that rests on few measurements."""
        n = len(self.costs)
        return interval if n >= FIRM else min(interval, FIRST * DOUBT**n)

    def recent(self, step: int) -> bool:
        """Say whether it was measured just now, so that a step may be left out."""
        return self.last is not None and step - self.last < FIRST

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs to know."""
        costs = list(self.costs)
        return {"interval": self.interval, "last": self.last, "costs": costs, "wanted": self.wanted}

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Restore `state`, or begin without; one-time costs will come again."""
        self.fresh, self.last, self.reference = True, None, -1
        self.costs.clear()
        if state is not None:
            self.interval, self.last, self.wanted = state["interval"], state["last"], state["wanted"]
            self.costs.extend(state["costs"])


def groups_of(quantities: Sequence[Quantity]) -> list[Group]:
    """Group quantities of the same kind and schedule; the kinds from cheap to dear."""
    found: list[tuple[int, list[Quantity]]] = []
    for quantity in quantities:
        own = kind(quantity)
        for level, members in found:  # schedules of the user's may be unhashable, but compare
            if level == own and members[0].when == quantity.when:
                members.append(quantity)
                break
        else:
            found.append((own, [quantity]))
    found.sort(key=lambda entry: entry[0])
    return [
        Group(members, ", ".join(q.name for q in members), FIRST * (k + 1))
        for k, (_, members) in enumerate(found)
    ]


def kind(quantity: Quantity) -> int:
    """Return 0: vectors of the step alone, 1: sums of individual gradients, 2: their elements, 3: curvature."""
    try:
        needs = tuple(quantity.request({}, 0))
    except Exception:  # a plugin's own; it is reported when the step is planned
        needs = ()
    return max((_kind(need) for need in (*needs, *quantity.needs_after)), default=0)


def _kind(need: Need) -> int:
    sources: Iterable[Need] = getattr(need, "sources", ())
    if sources:  # computed from other needs
        return max(map(_kind, sources))
    if isinstance(need, TopEigenvalue | Diagonal | DiagonalVariance):
        return 3
    if (
        isinstance(need, Known) or need.over_examples is Join.NEVER
    ):  # no sum over examples: made of known vectors
        return 0
    return 2 if isinstance(need, Elementwise) else 1


def spread(costs: Sequence[float], rates: Sequence[float], allowed: float) -> list[int]:
    r"""Return an interval for every group, each a multiple of the one before: together they cost ``allowed`` a step.

    ``costs`` $C_g$ are those of a step in which group g and all cheaper ones are measured, so that g adds
    $m_g = C_g - \max_{h<g} C_h$ and all groups spend $\sum_g m_g \min(1/k_g, r_g)$, where $r_g$ (``rates``) is the
    share of steps at which g's own schedule wants it. From cheap to dear, each group may spend an equal part of what
    those before it have left. What rounding leaves over is given out too: shares grow while the sum stays within
    bounds.
    """
    generous = float(len(costs))
    while True:
        intervals, spent, k, most = [], 0.0, 1, 0.0
        for g, (cost, rate) in enumerate(zip(costs, rates, strict=True)):
            share = max(0.0, generous * allowed - spent) / (len(costs) - g)
            extra = max(0.0, cost - most)
            most = max(most, cost)
            if extra * min(1 / k, rate) > share:
                k = min(LONGEST, k * _irregular(ceil(extra / max(share * k, extra / LONGEST))))
            spent += extra * min(1 / k, rate)
            intervals.append(k)
        if spent <= allowed or generous == 1:
            return intervals
        generous = max(1.0, 0.8 * generous)


def _irregular(factor: int) -> int:
    """Return the next number that has no factor in common with 10: users pause every 100 or 1000 steps, we must not."""
    while factor > 7 and factor % 10 not in (1, 3, 7, 9):
        factor += 1
    return factor
