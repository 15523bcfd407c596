"""Agenda: which quantities are due at the coming step, which still wait for it, and what they ask of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from cockpit.engine.needs import Need
from cockpit.quantities.quantity import Memory, Quantity
from cockpit.session.budget import Budget
from cockpit.session.recorder import Recorder

LATELY = 8
"""How many kinds of step are remembered."""


class Agenda:
    """Plans one step after the other.

    Args:
        quantities: those of the session.
        memory: what they remember, by name.
        budget: decides which of those that are due can be afforded (None: all).
        recorder: is told what fails.
    """

    def __init__(
        self,
        quantities: Sequence[Quantity],
        memory: Mapping[str, Memory],
        budget: Budget | None,
        recorder: Recorder,
    ) -> None:
        self.due: list[Quantity] = []
        self.waiting: list[Quantity] = []
        """Quantities of the step before that need the coming one, too."""
        self._memory, self._budget, self._recorder = memory, budget, recorder
        groups = [list(group) for _, group in groupby(quantities, key=lambda quantity: id(quantity.when))]
        self._groups = [(group[0].when, group) for group in groups]
        """Quantities side by side that share a schedule, which is asked once."""
        self._adaptive = frozenset(q for q in quantities if q.adaptive)
        self._asked: dict[Any, frozenset[Need]] = {}
        """What was asked for lately: at intervals, kinds of step alternate."""
        self._usual: tuple[Any, Any, frozenset[Need]] = (None, None, frozenset())
        """What was due and waited at the step before, and what was asked of it, if that is the same every time."""
        self._late: tuple[Any, list[Quantity]] = (None, [])
        """Those that need the following step, of what was due."""

    @property
    def empty(self) -> bool:
        """Whether nobody wants to see the coming step."""
        return not (self.due or self.waiting)

    @property
    def adapts(self) -> bool:
        """Whether what is asked of the next step depends on this one."""
        return not self._adaptive.isdisjoint(self.due)

    def plan(self, step: int) -> None:
        """Decide once what is due at a step."""
        due: list[Quantity] = []
        for when, group in self._groups:
            try:
                if when(step):
                    due += group
            except Exception as failure:
                for quantity in group:
                    self._recorder.failure(step, quantity.name, f"its schedule raised {failure!r}")
        self.due = self.due if due == self.due else due  # the same object saves comparing what is in it
        if self._budget is not None:
            with self._recorder.guarded(step, "budget"):
                self.due = self._budget.plan(step, self.due)
                for text in self._budget.news():
                    self._recorder.event(step, "budget", text)

    def needs(self, step: int) -> frozenset[Need]:
        """Return what is asked of a step; the same object as long as it is the same."""
        if self._usual[0] is self.due and self._usual[1] is self.waiting:
            return self._usual[2]
        asking = (tuple(map(id, self.due)), tuple(map(id, self.waiting)))
        if asking in self._asked and not self.adapts:
            self._usual = self.due, self.waiting, self._asked[asking]
            return self._asked[asking]
        needs = {need for q in self.waiting for need in q.needs_after}
        for quantity in self.due:
            with self._recorder.guarded(step, quantity.name):
                needs.update(quantity.request(self._memory[quantity.name], step))
        if len(self._asked) >= LATELY:
            self._asked.clear()
        self._asked[asking] = frozenset(needs)
        return self._asked[asking]

    def observed(self) -> None:
        """Note that the step was seen: some quantities wait for the next one."""
        if self._late[0] is not self.due:
            self._late = self.due, [q for q in self.due if q.needs_after]
        self.waiting = self._late[1]

    def forget(self) -> None:
        """Ask anew, whatever was asked before."""
        self._usual = None, None, frozenset()
        self._asked.clear()
