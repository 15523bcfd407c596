"""Budget: thins out what is measured until watching fits a share of the training's time.

The share is the extra time of watched steps over unwatched ones, divided by the time the training would take without.
Quantities keep their own schedules; the budget only leaves steps out. Cheap ones are measured often and dear ones
rarely: quantities fall into groups by the work they need (`cost_groups.kind`), each group has an interval, and where a
group is measured, the cheaper ones that are due are too. Intervals are chosen anew when one is used up, from what
was measured (`ledger`): between measured steps nothing is decided, and data-parallel processes need not talk.

At first everything is measured once, then group after group once more, some steps apart, to learn what each costs.
Unwatched steps are timed all along; where every step is measured, some of `REFERENCE` are left out for that.

One-time costs (examining the model, compiling) are not taken for the cost of a step, but count towards the share. While
that is above the budget, for whatever reason, half of the budget is given out: a dear start is paid back by and by and
forbids nothing. What our own code takes where nothing is measured is paid first. Where that alone is a good part of the
budget, because steps are short, the session *rests* between measurements: it counts steps, and times or plans nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cockpit.errors import CockpitError
from cockpit.quantities.quantity import Quantity
from cockpit.session.cost_groups import FIRST, Group, groups_of, spread
from cockpit.session.ledger import Episode, Ledger
from cockpit.session.stopwatch import Clock

REFERENCE = 200
"""Steps after which unwatched ones are timed again."""
REFERENCES = 5
WORTH = 0.25
"""Part of the budget that is spent where nothing is measured, from which on the session rests."""
LEAD = 8
"""Unwatched steps that are timed before a measurement, to compare it with; and the shortest rest."""
LASTING = 8
"""Steps for which an episode can last while its numbers are on the way."""


class Budget:
    """Keeps the time spent watching below a share; ``agree`` gives every process the choice of the first one.

    (None: there is one process.)
    """

    def __init__(
        self,
        limit: float,
        quantities: Sequence[Quantity],
        clock: Clock,
        agree: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        self.limit = checked_limit(limit)
        self.history: deque[tuple[int, dict[str, int]]] = deque(maxlen=100)
        """(step, intervals) at every notable change."""
        self._groups = groups_of(quantities)
        self._agree = agree
        self._ledger = Ledger(clock)
        self._news: list[str] = []
        self._plans = 0
        self._restart()

    def _restart(self) -> None:
        self._planned: int | None = None
        self._allowed: set[Quantity] = set()
        self._episode: Episode | None = None
        self._trail: Episode | None = None
        """The episode of the step before, where the recording of it is not finished."""
        self._idle = False
        """Whether the step before was an unwatched one."""
        self._begun = False
        """Whether the episode begins with the present step."""
        self._decided = self._claimed = self._busy = -1
        """Steps: of the last choice, and up to which the episode and any measurement are felt."""
        self._reference: int | None = None
        """The last unwatched step."""
        self._missing = 0
        """Unwatched steps that are wanted."""

    # -- what the user may ask --------------------------------------------------------------------------

    @property
    def intervals(self) -> dict[str, int]:
        """The least number of steps from one measurement of a quantity to the next, as chosen now."""
        return {q.name: g.interval for g in self._groups for q in g.quantities}

    @property
    def share(self) -> float:
        """Time spent watching so far, relative to the training without it; one-time costs included."""
        return self._ledger.share

    def report(self) -> str:
        """Return what was asked, what was spent and which intervals were chosen, in some lines of text."""
        lines = [f"{self.share:.1%} of the training's time spent watching, {self.limit:.1%} asked"]
        lines.append(
            f"included: once {self._ledger.once:.2g} s; {self._ledger.standing:.1%} where nothing is measured"
        )
        for g in self._groups:
            cost = "cost not known yet" if g.cost is None else f"cost: {max(0.0, g.cost):.2g} steps"
            lines.append(f"{_every(g.interval)}: {g.name} ({cost})")
        return "\n".join(lines)

    def describe(self) -> dict[str, Any]:
        """Return the same as plain values, to be stored with the run."""
        self._ledger.settle()
        return {
            "asked": self.limit,
            "share": self.share,
            "once_seconds": self._ledger.once,
            "standing": self._ledger.standing,
            "step_seconds": self._ledger.step_seconds,
            "intervals": self.intervals,
            "history": [[step, intervals] for step, intervals in self.history],
        }

    # -- what the session tells -------------------------------------------------------------------------

    def plan(self, step: int, due: Sequence[Quantity]) -> list[Quantity]:
        """Return those of the quantities due at a step that the budget allows; asked again, say the same."""
        if step != self._planned:
            self._planned = step
            self._ledger.settle()
            self._choose(step, set(due))
        return [q for q in due if q in self._allowed]

    def entered(self) -> None:
        """Note that a backward pass is about to run."""
        self._ledger.watch.cut()

    def ended(self, seen: bool, unfinished: bool = False) -> None:
        """Note that a step is over.

        Args:
            seen: whether it was observed, where something was due.
            unfinished: whether numbers of this step or earlier ones are still to be recorded, at a later step's cost.
        """
        label = self._episode or self._trail
        timed = self._ledger.watch.end(label)
        if label is not None and self._begun and not (timed and seen):
            label.group = None
        lasting = unfinished and self._planned is not None and self._planned < self._claimed + LASTING
        self._trail = label if lasting else None
        self._idle = label is None

    def paid(self, seconds: float) -> None:
        """Note what our own code took between the optimiser's step and the user's next line."""
        if self._idle:
            self._ledger.own(seconds)

    def skipped(self) -> None:
        """Note that the step begins anew: its time says nothing."""
        self._ledger.watch.forget()

    def rest(self, step: int) -> int:
        """Return for how many steps, from this one on, nothing need be asked or told; `rested` says when they are over.

        Processes that talk to each other would not agree on it, since it depends on times.
        """
        costly = self._ledger.standing > WORTH * self.limit
        if not costly or self._agree is not None or step <= self._busy or self._trail is not None:
            return 0
        if self._missing > 0 or any(g.last is None or g.cost is None for g in self._groups):
            return 0
        ready = min(g.last + g.interval for g in self._groups if g.last is not None)
        found = min(ready - LEAD - step, REFERENCE)
        return found if found >= LEAD else 0

    def rested(self, steps: int) -> None:
        """Note that so many steps were neither timed nor planned."""
        self._ledger.rested(steps)

    def news(self) -> list[str]:
        """Return what is worth an event since the last call: intervals that changed by more than a factor of 2."""
        found, self._news = self._news, []
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a resumed training."""
        self._ledger.settle()
        groups = {g.name: g.state() for g in self._groups}
        history = [[step, dict(intervals)] for step, intervals in self.history]
        return {"groups": groups, "plans": self._plans, "ledger": self._ledger.state(), "history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; groups that were not there begin anew."""
        for g in self._groups:
            g.begin(state["groups"].get(g.name))
        self._plans = int(state["plans"])
        self._ledger.load_state(state["ledger"])
        self.history.clear()
        self.history.extend((int(step), dict(intervals)) for step, intervals in state["history"])
        self._restart()

    # -- choosing ---------------------------------------------------------------------------------------

    def _choose(self, step: int, due: set[Quantity]) -> None:
        """Decide what is measured at a step. Nothing in here depends on times, so all processes do the same."""
        self._plans += 1
        wanted = [g for g in self._groups if not due.isdisjoint(g.quantities)]
        for g in wanted:
            g.wanted += 1
        chosen = self._affordable(step, wanted)
        if self._refers(step) and all(g.recent(step) for g in chosen):
            chosen = []
        self._allowed = {q for g in chosen for q in g.quantities if q in due}
        self._begun = bool(chosen) and self._begins(step, chosen)
        if chosen:
            waits = any(q.needs_after for q in self._allowed)
            self._busy = max(self._busy, step + 1 + waits)
            if self._begun:
                self._episode = Episode(chosen[-1], any(g.fresh for g in chosen))
                self._claimed = self._busy
        elif step > self._busy:
            self._episode, self._reference = None, step
            self._missing -= 1
        for g in chosen:
            g.last, g.fresh = step, False

    def _begins(self, step: int, chosen: list[Group]) -> bool:
        """Say whether a measurement is an episode of its own, rather than in the wake of a dearer one."""
        if self._episode is None or step > self._claimed or any(g.fresh for g in chosen):
            return True
        group = self._episode.group
        return group is None or self._groups.index(group) <= self._groups.index(chosen[-1])

    def _refers(self, step: int) -> bool:
        """Say whether unwatched steps are wanted."""
        if self._reference is None:
            self._reference = step + FIRST - REFERENCE
        if step - self._reference >= REFERENCE:
            self._missing = REFERENCES
        return self._missing > 0

    def _affordable(self, step: int, wanted: list[Group]) -> list[Group]:
        """Return the groups whose intervals are used up, and with them all that are cheaper."""
        ready = [g for g in wanted if g.ready(step)]
        patience = FIRST if any(g.interval > 1 for g in ready) else REFERENCE
        if ready and (self._decided < 0 or step - self._decided >= patience):
            self._decided = step
            self._decide(step)
            ready = [g for g in wanted if g.ready(step)]
        return wanted[: wanted.index(ready[-1]) + 1] if ready else []

    def _decide(self, step: int) -> None:
        """Choose the intervals anew."""
        known = [(g, g.cost) for g in self._groups if g.cost is not None]
        costs, rates = [cost for _, cost in known], [g.wanted / self._plans for g, _ in known]
        limit = self.limit / 2 if self.share > self.limit else self.limit
        # (Of a rest, too: what calling our hooks takes is not seen, and as much is left for that.)
        limit = max(limit - self._ledger.standing, self.limit / 10)
        chosen = {g.name: g.limited(k) for (g, _), k in zip(known, spread(costs, rates, limit), strict=True)}
        agreed = [chosen.get(g.name, g.interval) for g in self._groups]
        if self._agree is not None:
            agreed = self._agree(agreed)
        changed = []
        for g, k in zip(self._groups, agreed, strict=True):
            g.interval = k
            if g.costs and (g.told is None or not g.told <= 2 * k <= 4 * g.told):
                g.told = k
                changed.append(f"{_every(k)}: {g.name}")
        if changed:
            self._news.append("; ".join(changed))
            self.history.append((step, self.intervals))


def _every(interval: int) -> str:
    return "every step" if interval == 1 else f"every {interval} steps"


def checked_limit(limit: object) -> float:
    """Insist on a share of time between 0 and 1."""
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 < limit < 1:
        raise CockpitError(
            f"Cockpit(budget={limit!r}): the share of training time that watching may take, between 0 and 1, e.g. "
            "budget=0.05 for 5 %. To watch without a limit leave it out; to choose the steps yourself, give when=…"
        )
    return float(limit)
