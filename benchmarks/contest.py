"""Measures one problem: every contestant of every environment, in rounds that go over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.contestants.step import IDLE, UNTRACKED
from benchmarks.environments import Environment
from benchmarks.intervals import composed
from benchmarks.remote import Remote
from cockpit.bench.clock import Times
from cockpit.bench.rounds import Cost, Entry, Outcome, Pace, UnableError, measure


@dataclass(frozen=True)
class Contestant:
    """One line of the results: an environment, what is measured in it, and how often it is due."""

    environment: str
    name: str
    interval: int = 1

    @property
    def key(self) -> str:
        """A name that is unique in a problem."""
        return f"{self.environment}/{self.name}/{self.interval}"


@dataclass(frozen=True)
class Rules:
    """How a problem is measured.

    Attributes:
        pace: of the rounds.
        intervals: beyond 1, for what has schedules.
        longest: seconds of untracked steps that one interval may take; longer ones are composed of what is known.
        memory: whether peaks are measured.
    """

    pace: Pace
    intervals: Sequence[int] = (4, 16, 64, 256)
    longest: float = 2.0
    memory: bool = True


class Contest:
    """The workers of one problem and what they found."""

    def __init__(self, remotes: Mapping[str, Remote], rules: Rules, say: Callable[[str], None]) -> None:
        self._remotes = remotes
        self._rules = rules
        self._say = say
        self._rows: dict[str, dict[str, Any]] = {}

    def results(self, chosen: Sequence[tuple[Environment, Sequence[str]]]) -> Iterator[list[dict[str, Any]]]:
        """Measure everything; after each stage yield what is known, one row for each contestant and interval."""
        self._say("starting")
        first = [Contestant(e.name, name) for e, names in chosen for name in self._names(e, names)]
        outcome = self._measured(first, self._rules.pace)
        yield list(self._rows.values())
        self._intervals(chosen, outcome)
        yield list(self._rows.values())
        if self._rules.memory:
            self._memory(first)
            yield list(self._rows.values())

    def _names(self, environment: Environment, names: Sequence[str]) -> list[str]:
        scheduled = any(name in environment.configurations for name in names)
        return [UNTRACKED, *([IDLE] if environment.idle and scheduled else []), *names]

    def _measured(self, contestants: Sequence[Contestant], pace: Pace) -> Outcome:
        entries = [
            Entry(c.key, self._runner(c), Contestant(c.environment, UNTRACKED).key, c.interval)
            for c in contestants
        ]
        outcome = measure(entries, pace, self._say)
        for c in contestants:
            row: dict[str, Any] = asdict(c)
            cost = outcome.costs.get(c.key)
            row |= {"reason": outcome.reasons[c.key]} if cost is None else {"how": "measured", **asdict(cost)}
            try:
                gaps = self._remotes[c.environment].ask("finish", contestant=c.name, interval=c.interval)[
                    "gaps"
                ]
                row |= {"gaps": gaps} if gaps else {}
            except UnableError as failure:
                row.setdefault("reason", str(failure))
            # the untracked step is measured again beside the longer intervals: the first time counts
            self._rows.setdefault(c.key, row)
        return outcome

    def _runner(self, c: Contestant) -> Callable[[int], Times]:
        """Return what runs steps of a contestant, which is made at the first call."""
        made = False

        def run(steps: int) -> Times:
            nonlocal made
            if not made:
                self._remotes[c.environment].ask(
                    "prepare", environment=c.environment, contestant=c.name, interval=c.interval
                )
                made = True
            return self._remotes[c.environment].run(c.name, c.interval, steps)

        return run

    def _intervals(self, chosen: Sequence[tuple[Environment, Sequence[str]]], outcome: Outcome) -> None:
        """Measure configurations at longer intervals, or compose their cost where that would take too long."""
        short: list[Contestant] = []
        for environment, names in chosen:
            base = outcome.costs.get(Contestant(environment.name, UNTRACKED).key)
            configurations = [
                name
                for name in names
                if name in environment.configurations
                and Contestant(environment.name, name).key in outcome.costs
            ]
            if base is None or not configurations:
                continue
            fitting = [k for k in self._rules.intervals if k * base.wall_ms / 1e3 <= self._rules.longest]
            short.append(Contestant(environment.name, UNTRACKED))
            short += [Contestant(environment.name, name, k) for name in configurations for k in fitting]
        if any(c.interval > 1 for c in short):
            self._say("longer intervals")
            pace = replace(self._rules.pace, rounds=min(5, self._rules.pace.rounds))
            outcome.costs = self._measured(short, pace).costs | outcome.costs
        for environment, names in chosen:
            for name in names:
                if name in environment.configurations:
                    self._compose(environment.name, name, outcome.costs)

    def _compose(self, environment: str, name: str, costs: Mapping[str, Cost]) -> None:
        idle = costs.get(Contestant(environment, IDLE).key)
        known = {
            k: cost for k in (1, *self._rules.intervals) if (cost := costs.get(f"{environment}/{name}/{k}"))
        }
        if idle is None or not known:
            return
        longest = max(known)
        for k in self._rules.intervals:
            c = Contestant(environment, name, k)
            if k > longest and c.key not in self._rows:
                row = asdict(composed(known[longest], longest, idle, k))
                self._rows[c.key] = {
                    **asdict(c),
                    "how": f"composed of interval {longest} and idle steps",
                    **row,
                }

    def _memory(self, contestants: Sequence[Contestant]) -> None:
        """Measure peaks, each of a training made for it alone, and compare them with the untracked one."""
        self._say("memory")
        base: dict[str, int] = {}
        for c in contestants:
            row = self._rows[c.key]
            if "reason" in row:
                continue
            self._say(f"memory of {c.key}")
            try:
                answer = self._remotes[c.environment].ask(
                    "memory", environment=c.environment, contestant=c.name
                )
            except UnableError as failure:
                row["memory_reason"] = str(failure)
                continue
            row["peak_bytes"] = answer["bytes"]
            if c.name == UNTRACKED:
                base[c.environment] = answer["bytes"]
            if base.get(c.environment):
                row["peak_ratio"] = answer["bytes"] / base[c.environment]
