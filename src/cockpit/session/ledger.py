"""Ledger: from the times of steps to what watching has cost.

Unwatched steps say what a step takes. A measured step and those after it that bear its consequences make an *episode*;
its cost is their time less the usual time of as many unwatched steps. What our own code takes at unwatched steps is
told by the session and counted at every step. All of it in units of a step of the training without us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit.session.cost_groups import FIRM, Group
from cockpit.session.stopwatch import Clock, Stopwatch, Timed

PAUSE = 3.0
"""An unwatched step of more than so many times the median was interrupted."""
FRESH, STALE = 25, 250
"""For so many steps unwatched ones say what the steps after them would have taken; after so many they are dropped."""
RECENT, RARELY = 25, 8
"""So many unwatched steps say what is usual, looked at at every so many: looking costs, too."""
RESTING = 0.2
"""What is left of our own code's time while the session rests: hooks that are called."""
OUTLIER = 8.0
"""What an episode costs beyond so many times the usual, and one step, is not taken for watching."""


@dataclass(eq=False)
class Episode:
    """A measured step, the following one where a quantity waits for it, and the first unwatched step.

    That one belongs to it because a device runs dry when numbers are read from it, and has to catch up.
    """

    group: Group | None
    """The dearest that was measured; None if nothing is known of the step after all."""
    first: bool
    """Whether something was measured for the first time."""
    steps: list[Timed] = field(default_factory=list)
    place: int = 0
    """How many steps had been timed at its first."""


class Ledger:
    """Books every step as unwatched or as part of an episode, when its time has become known."""

    def __init__(self, clock: Clock) -> None:
        self.watch = Stopwatch(clock)
        self.spent = 0.0
        """Time spent watching so far, one-time costs included, in units of a plain step."""
        self.steps = 0
        """Steps timed."""
        self.once = 0.0
        """Seconds of one-time costs."""
        self._unwatched: dict[bool, deque[tuple[int, Timed]]] = {
            c: deque(maxlen=RECENT) for c in (True, False)
        }
        """By kind of step (`Timed.cut`): how many steps had been timed, and the time."""
        self._own: deque[float] = deque(maxlen=RECENT)
        self._owns, self._usual_own = 0, 0.0
        self._known: dict[bool, tuple[float, float]] = {}
        self._last: Episode | None = None
        self._unpriced: deque[Episode] = deque(maxlen=100)

    @property
    def share(self) -> float:
        """Time spent watching, relative to the training without it."""
        return max(0.0, self.spent) / self.steps if self.steps else 0.0

    @property
    def step_seconds(self) -> float | None:
        """The usual time of a step without us; None: not known yet."""
        known = [cut for cut, steps in self._unwatched.items() if len(steps) >= FIRM]
        return self._plain(known[0]) if known else None

    @property
    def standing(self) -> float:
        """What a step costs at which nothing is measured."""
        seconds = self.step_seconds
        return self._usual_own / seconds if seconds else 0.0

    def own(self, seconds: float) -> None:
        """Note the time our own code took at an unwatched step."""
        self._own.append(seconds)
        self._owns += 1
        if self._owns % RARELY == FIRM:
            self._usual_own = _usual(list(self._own))

    def rested(self, steps: int) -> None:
        """Book steps at which our own code did next to nothing."""
        self.settle()
        self.steps += steps
        self.spent += RESTING * self.standing * steps
        self.watch.forget()

    def settle(self) -> None:
        """Book all steps whose times have become known."""
        for timed in self.watch.done():
            self.steps += 1
            self.spent += self.standing
            if self._last is not None and timed.label is not self._last:
                self._unpriced.append(self._last)
            self._last = timed.label
            if timed.label is None:
                self._unwatched_step(timed)
            else:
                timed.label.place = timed.label.place or self.steps
                timed.label.steps.append(timed)
        while self._unpriced and self._priced(self._unpriced[0]):
            self._unpriced.popleft()

    def _unwatched_step(self, timed: Timed) -> None:
        steps = self._unwatched[timed.cut]
        steps.append((self.steps, timed))
        # The training may have had another pace long ago.
        while len(steps) > FIRM and steps[0][0] < self.steps - STALE:
            steps.popleft()
        if len(steps) < RECENT or self.steps % RARELY == 0:
            self._known.pop(timed.cut, None)

    def _priced(self, episode: Episode) -> bool:
        """Book an episode; return False if it is not known yet what an unwatched step takes."""
        group = episode.group
        if group is None:
            return True
        cut = episode.steps[0].cut
        if len(self._unwatched[cut]) < FIRM:
            return False
        extra = self._extra(episode.steps, *self._usual(cut))
        cost = extra / self._plain(cut)
        if episode.first:
            self.once += max(0.0, extra)
            self.spent += max(0.0, cost)
        else:
            last = self._unwatched[cut][-1][0]
            if group.small and episode.place - last > FRESH:
                cost = max(0.0, group.cost or 0.0)  # a change of pace would drown it
            else:
                group.add(cost, last)
            bound = OUTLIER * max(0.0, group.cost or 0.0) + 1.0
            self.spent += min(cost, bound) if len(group.costs) >= FIRM else cost
        return True

    @staticmethod
    def _extra(steps: list[Timed], inside: float, before: float) -> float:
        """Return the seconds that steps took beyond the usual."""
        found = 0.0
        for timed in steps:
            found += timed.inside - inside
            if timed.before is not None and timed.before < 2 * before:  # else a pause of the user's
                found += timed.before - before
        return found

    def _usual(self, cut: bool) -> tuple[float, float]:
        """Return the usual seconds inside and before an unwatched step."""
        if cut not in self._known:
            steps = self._unwatched[cut]
            before = _usual([t.before for _, t in steps if t.before is not None])
            self._known[cut] = _usual([t.inside for _, t in steps]), before
        return self._known[cut]

    def _plain(self, cut: bool) -> float:
        """Return the usual seconds of a step without us."""
        whole = sum(self._usual(cut))
        return max(whole - self._usual_own, whole / 2, 1e-9)

    def state(self) -> dict[str, Any]:
        """Return plain values; times are not among them, a resumed training may run on another machine."""
        return {"spent": self.spent, "steps": self.steps, "once": self.once}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; the step in progress is not timed."""
        self.spent, self.steps = float(state["spent"]), int(state["steps"])
        self.once = float(state["once"])
        self.watch.forget()


def _usual(seconds: list[float]) -> float:
    """Return the mean of all but the interrupted; 0 of none."""
    if not seconds:
        return 0.0
    bound = PAUSE * sorted(seconds)[len(seconds) // 2]
    found = [s for s in seconds if s <= bound]
    return sum(found) / len(found)
