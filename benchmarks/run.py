"""Runs the benchmark: starts workers, measures problem after problem, and writes the results after each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.contest import Contest, Rules
from benchmarks.environments import ALL, ROOT, CannotMakeError, Environment, command
from benchmarks.machine import machine
from benchmarks.problems import PROBLEMS
from benchmarks.problems.problem import Scale
from benchmarks.remote import BEREFT, Remote
from cockpit.bench.rounds import UnableError

QUICK = ("quadratic_deep", "mnist_logreg", "mnist_mlp")


@dataclass(frozen=True)
class Plan:
    """What is measured, where and how.

    Attributes:
        problems: their names.
        contestants: patterns of `environment/name`; all where there are none.
        device: `cpu` or `cuda`.
        rules: how each problem is measured.
        scale: sizes other than the definitions'.
        data: a folder with real data.
        install: whether peers that are missing may be installed.
        heavy: whether a CPU has to run what is too slow for it.
    """

    problems: Sequence[str]
    contestants: Sequence[str]
    device: str
    rules: Rules
    scale: Scale = field(default_factory=Scale)
    data: Path | None = None
    install: bool = True
    heavy: bool = False


def run(plan: Plan, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, and return what was written to ``out``."""
    results: dict[str, Any] = {"machine": machine(plan.device), "options": _options(plan), "problems": {}}
    workers = Workers(plan, say)
    try:
        for name in plan.problems:
            for found in _problem(name, plan, workers, say):
                results["problems"][name] = found  # what is known is kept, should somebody break it off
                results["machine"]["versions"] = workers.versions
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    finally:
        workers.close()
    return results


def _problem(name: str, plan: Plan, workers: Workers, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    if PROBLEMS[name].heavy and plan.device == "cpu" and not plan.heavy:
        yield {"skipped": "too slow for one thread of a CPU (--heavy runs it all the same)"}
        return
    wanted = [(e, names) for e in ALL if (names := selected(e, plan.contestants))]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    while wanted:
        for found in _contest(name, plan, wanted, workers, say):
            for row in found["rows"]:
                key = row["environment"], row["name"], row["interval"]
                if "reason" in rows.get(key, {"reason": ""}):
                    rows[key] = row
            yield {**found, "rows": [*rows.values()]}
        # Who has used up the memory takes the others of its environment along; without it they get another worker.
        bereft = {key[:2] for key, row in rows.items() if row.get("reason", "").startswith(BEREFT)}
        again = [(e, [n for n in names if (e.name, n) in bereft]) for e, names in wanted]
        wanted = [(e, names) for e, names in again if names]


def _contest(
    name: str,
    plan: Plan,
    wanted: Sequence[tuple[Environment, list[str]]],
    workers: Workers,
    say: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    chosen, rows, facts = [], [], {}
    for environment, _ in wanted:
        with suppress(CannotMakeError):
            workers.get(environment)  # they start side by side: importing takes a while
    for environment, names in wanted:
        try:
            answer = workers.get(environment).ask(
                "open",
                problem=name,
                device=plan.device,
                data=str(plan.data.absolute()) if plan.data else None,
                scale=asdict(plan.scale),
            )
        except (UnableError, CannotMakeError) as failure:
            rows += [
                {"environment": environment.name, "name": n, "interval": 1, "reason": str(failure)}
                for n in names
            ]
            continue
        workers.versions |= answer.pop("versions")
        facts = answer
        chosen.append((environment, names))
    contest = Contest(workers.running, plan.rules, lambda text: say(f"{name}: {text}"))
    for found in contest.results(chosen):
        yield {**facts, "rows": [*found, *rows]}


def selected(environment: Environment, patterns: Sequence[str]) -> list[str]:
    """Return which contestants of an environment are meant: `cockpit`, `cockpit/economy`, `*/full`, or all."""
    names = [*environment.configurations, *environment.singles]
    if not patterns:
        return names
    return [n for n in names if any(_matches(environment.name, n, pattern) for pattern in patterns)]


def _matches(environment: str, name: str, pattern: str) -> bool:
    return fnmatch(f"{environment}/{name}", pattern if "/" in pattern else f"{pattern}/*")


def _options(plan: Plan) -> dict[str, Any]:
    rules = plan.rules
    pace = {key: value for key, value in asdict(rules.pace).items() if value != float("inf")}
    return {
        "contestants": list(plan.contestants) or "all",
        "intervals": [1, *rules.intervals],
        "longest": rules.longest,
        **pace,
        "scale": asdict(plan.scale),
        "batch": "one fixed batch, trained on again and again",
    }


class Workers:
    """One process for each environment, started when it is first needed and again when it has died."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.running: dict[str, Remote] = {}
        self.versions: dict[str, str] = {}
        self._plan = plan
        self._say = say

    def get(self, environment: Environment) -> Remote:
        """Return the worker of an environment."""
        remote = self.running.get(environment.name)
        if remote is None or not remote.alive:
            if remote is not None:
                remote.close()
            words, variables = command(environment, self._plan.install, self._say)
            remote = self.running[environment.name] = Remote(words, variables, ROOT)
        return remote

    def close(self) -> None:
        """End all of them."""
        for remote in self.running.values():
            remote.close()
