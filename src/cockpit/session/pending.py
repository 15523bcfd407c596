"""Pending: steps that are over, whose numbers may still be on their way from the device, until they are recorded.

Steps that are alike make a stretch and are recorded together, which costs little more than one of them: steps in a
row, or (at intervals) steps each of which is followed by one that is looked at for its sake only. For that, small steps
wait for each other, but not for long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.stretch import Settled, alike
from cockpit.engine.answers.table import Table
from cockpit.engine.needs import Known
from cockpit.quantities.quantity import Observation, OptimizerView, Quantity

LAG = 4
"""How many steps may wait for their numbers to come from the device, and more only where they wait for each other."""
LONGEST = 256
"""How many steps may wait for each other."""
PATIENCE = 0.1
"""For how many seconds they may."""
LONGEST_PATIENCE = 0.5
"""For how many seconds they may where recording takes long."""
IDLE = 0.1
"""After how many seconds without another step the training pauses."""
SHARE = 0.01
"""Of the time, what recording may take before steps wait longer."""
LARGEST = 2**24
"""How many bytes of numbers may wait."""


@dataclass(slots=True, eq=False)
class Pending:
    """What is needed to record a step once its numbers are there."""

    # Not frozen: one is made at every step, and a frozen one takes four times as long.
    step: int
    observed: Observed
    view: OptimizerView
    due: list[Quantity]
    waiting: list[Quantity]
    """Quantities of the step before that need this one, too."""
    clock: float
    coverage: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By which way each parameter's individual gradients were had; another object where that has changed."""

    def observation(self) -> Observation:
        """Return what quantities may look at."""
        o = self.observed
        return Observation(
            self.step,
            o.examples,
            o.table,
            self.view,
            {},
            o.known,
            o.eigenvalues,
            o.methods,
            o.variances,
            self.clock,
        )

    def like(self, other: Pending) -> bool:
        """Say whether it can be recorded together with another step."""
        ours, its = self.view, other.view
        return (
            (ours is its or (ours.name, ours.plain_sgd) == (its.name, its.plain_sgd))
            and self.coverage is other.coverage
            and self.due == other.due
            and alike(self.observed, other.observed)
        )

    def continues(self, steps: Sequence[Pending]) -> bool:
        """Say whether it belongs to a stretch that begins with these steps."""
        last = steps[-1]
        if not self.due:  # looked at for the sake of the last one only
            follows = self.step == last.step + 1 and self.coverage is last.coverage and bool(last.due)
            return follows and (len(steps) == 1 or (not steps[1].due and self.like(steps[1])))
        if not last.due:
            return len(steps) > 1 and self.like(steps[-2])
        apart = len(steps) > 1 and not steps[1].due  # the last one's follower is missing
        if apart or not self.like(last):
            return False
        return self.step == last.step + 1 or not any(q.needs_after for q in self.due)


class Stretch:
    """Steps that are alike, once their numbers have arrived: one by one, or some of them together."""

    def __init__(self, steps: Sequence[Pending]) -> None:
        leading = [p for p in steps if p.due]
        self._steps = _Alike(leading or steps)
        self._after = _Alike([p for p in steps if not p.due]) if 0 < len(leading) < len(steps) else None
        self.numbers = self._steps.numbers
        self.followed = len(self) - 1 if self._after is None else len(self._after.numbers)
        """Of how many steps the following one is known."""

    def __len__(self) -> int:
        return len(self.numbers)

    def one(self, k: int) -> Observation:
        """Return what quantities may look at in one step."""
        return self._steps.one(k)

    def part(self, size: int) -> Observation:
        """Return what quantities may look at in the first steps at once."""
        return self._steps.part(0, size)

    def after(self, k: int) -> Observation:
        """Return what they may look at in the step that follows one."""
        return self._steps.one(k + 1) if self._after is None else self._after.one(k)

    def part_after(self, size: int) -> Observation:
        """Return what they may look at in the steps that follow the first ones."""
        return self._steps.part(1, size + 1) if self._after is None else self._after.part(0, size)


class _Alike:
    """Steps whose numbers lie alike, once they have arrived."""

    def __init__(self, steps: Sequence[Pending]) -> None:
        self._steps = steps
        self.numbers = tuple(p.step for p in steps)
        self._settled = Settled([p.observed for p in steps]) if len(steps) > 1 else None
        if self._settled is None:
            steps[0].observed.settle()
        self._parts: dict[tuple[int, int], Observation] = {}
        self._ones: dict[int, Observation] = {}

    def one(self, k: int) -> Observation:
        """Return what quantities may look at in one step."""
        k %= len(self._steps)
        if k not in self._ones:
            if self._settled is not None:
                self._settled.step(k)
            self._ones[k] = self._steps[k].observation()
        return self._ones[k]

    def part(self, start: int, stop: int) -> Observation:
        """Return what quantities may look at in several steps at once: statistics, losses, variances, [S, …].

        What was found of eigenvalues is in lists. Learning rates, which change from step to step, are not there.
        """
        assert self._settled is not None
        if (start, stop) not in self._parts:
            p, which = self._steps[start], slice(start, stop)
            losses = self._settled.losses
            known = {} if losses is None else {Known.LOSSES: losses[which]}
            table, view = self._settled.part(which), OptimizerView(p.view.name, {}, p.view.plain_sgd)
            methods, steps = p.observed.methods, [step.observed for step in self._steps[which]]
            variances: Any = {
                need: np.array([o.variances[need] for o in steps]) for need in p.observed.variances
            }
            eigenvalues = {need: [o.eigenvalues.get(need) for o in steps] for need in p.observed.eigenvalues}
            self._parts[start, stop] = Observation(
                p.step, p.observed.examples, table, view, {}, known, eigenvalues, methods, variances
            )
        return self._parts[start, stop]


class Backlog:
    """The steps that are pending.

    Args:
        patient: whether small steps wait for each other.
    """

    def __init__(self, patient: bool = True) -> None:
        self._steps: deque[Pending] = deque()
        self._patient = patient
        self._newest: tuple[Observed, Table, dict[Known, Any]] | None = None
        """The newest step, if it is small, with what it held when it came."""
        self._most = 1
        """How many steps like the newest may wait for each other."""
        self._size = (0, True)
        """How many bytes of numbers the newest has, and whether it has nothing else."""
        self._steady = False
        """Whether that is so of the two newest."""
        self._patience = PATIENCE
        self._last = -PATIENCE

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Pending) -> None:
        """Let a step wait."""
        if self._patient and not (self._shares(step.observed) and self._steady):
            size, small = before = self._size  # large and small ones may alternate
            self._size = step.observed.size, step.observed.small
            self._steady = before == self._size
            largest = max(1, size, self._size[0])
            self._most = min(LONGEST, 1 + LARGEST // largest) if small and self._size[1] else 1
        self._steps.append(step)

    def _shares(self, newest: Observed) -> bool:
        """Let steps that are alike share what they have in common; say whether this one is like the one before."""
        before, self._newest = self._newest, None
        if newest.small:
            like = before is not None and alike(before[0], newest)
            if before is not None and like:
                newest.share(*before[1:])
            self._newest = newest, newest.table, newest.known
            return like
        return False

    @property
    def ripe(self) -> bool:
        """Whether it is time to record what has arrived."""
        return len(self._steps) >= self._most or time.monotonic() - self._last >= self._patience

    @property
    def idle(self) -> bool:
        """Whether steps wait and no other has come for a while; any thread may ask."""
        waiting = list(self._steps)
        return bool(waiting) and time.time() - waiting[-1].clock >= IDLE

    def hasten(self) -> None:
        """Have all numbers sent that wait for each other on the device."""
        for step in list(self._steps):  # the training may add one meanwhile
            step.observed.hasten()

    def stretch(self, wait: bool) -> list[Pending]:
        """Take out the oldest steps: those alike that have arrived, or (``wait``) whenever they do."""
        self._last = time.monotonic()
        steps, found = self._steps, list[Pending]()
        patience = max(LAG, self._most)
        forced = len(steps) if wait else 0 if len(steps) <= patience else len(steps) - patience // 2
        while steps and (len(found) < forced or steps[0].observed.arrived):
            if found and not steps[0].continues(found):
                break
            found.append(steps.popleft())
        return found

    def took(self, seconds: float) -> None:
        """Learn how long it took to record what was ripe; it costs the same for many steps as for few."""
        self._patience = max(PATIENCE, min(seconds / SHARE, LONGEST_PATIENCE))

    def clear(self) -> None:
        """Forget all of them."""
        self._steps.clear()
        self._newest = None
