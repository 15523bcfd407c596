"""Evaluation: steps that are over become records, once their numbers have arrived, several of them at a time."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from cockpit.quantities.quantity import Memory, Observation
from cockpit.session.guard import Guard
from cockpit.session.pending import Backlog, Pending, Stretch
from cockpit.session.recorder import Recorder

PAUSE = 10.0
"""For how many seconds the training may wait for the writing thread, if that is recording steps."""


class Evaluation:
    """Evaluates pending steps by their quantities.

    The writing thread does so, too, where the training pauses, and the interpreter when it ends: what is known must
    not wait for the next step.

    Args:
        recorder: takes the readings.
        memory: what quantities remember, by name.
        patient: whether small steps wait for each other.
        failed: is told what could not be recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        memory: Mapping[str, Memory],
        patient: bool,
        failed: Callable[[str, Exception], None],
    ) -> None:
        self.previous: Observation | None = None
        """The last step, as long as somebody waits for the one after it."""
        self._recorder, self._memory, self._failed = recorder, memory, failed
        self._backlog = Backlog(patient)
        self._lock = threading.RLock()
        self._exit = partial(_settle, weakref.ref(self))
        atexit.register(self._exit)  # after the writer's own, so it is called before it
        recorder.when_quiet(partial(_settle_idle, weakref.ref(self)))

    def __del__(self) -> None:
        if hasattr(self, "_exit"):  # a cockpit that is dropped unclosed has steps that are known already
            with suppress(Exception):
                self.settle(wait=True)
            atexit.unregister(self._exit)

    @property
    def busy(self) -> bool:
        """Whether steps are pending."""
        return len(self._backlog) > 0

    def add(self, step: Pending) -> None:
        """Let a step wait for its numbers."""
        self._backlog.add(step)

    def settle_ripe(self) -> None:
        """Record what has arrived, if it is time to."""
        if self._backlog and self._backlog.ripe:
            begin = time.thread_time()
            self.settle(wait=False)
            self._backlog.took(time.thread_time() - begin)

    def settle_idle(self) -> None:
        """Record what has arrived, if no step has come for a while."""
        if self._backlog.idle:
            self.settle(wait=False)

    def settle(self, wait: bool) -> None:
        """Record the steps whose numbers have arrived; or (``wait``) all there are."""
        if not self._lock.acquire(timeout=PAUSE if wait else 0):
            return
        try:
            self._backlog.hasten()
            while steps := self._backlog.stretch(wait):
                with Guard(self._failed, "recording the step"):
                    self._record(steps)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Forget what is left."""
        atexit.unregister(self._exit)
        self._backlog.clear()
        self.previous = None

    def _record(self, steps: Sequence[Pending]) -> None:
        before, self.previous = self.previous, None
        try:
            stretch = Stretch(steps)
        except Exception:
            if len(steps) == 1:
                raise
            self.previous = before  # the numbers of some step cannot be had: the others' may
            for step in steps:
                with Guard(self._failed, "recording the step"):
                    self._record([step])
            return
        first, memory = steps[0], self._memory
        if before is not None:
            for q in first.waiting:
                self._recorder.read(q, before, memory[q.name], first.coverage, stretch.one(0))
        for q in first.due:
            self._recorder.read_stretch(q, stretch, memory[q.name], first.coverage)
        waiting = [q for q in first.due if q.needs_after]
        if waiting and stretch.followed < len(stretch):
            self.previous = stretch.one(-1)
            self.previous.statistics.shrink({need for q in waiting for need in q.needs})
        rates, notes = [p.view.learning_rates for p in steps], [p.observed.notes for p in steps]
        self._recorder.steps([p.step for p in steps], rates, notes, first.coverage)


def _settle(evaluation: weakref.ref[Evaluation]) -> None:
    """Record what is still under way when the program ends without `Cockpit.close`."""
    found = evaluation()
    if found is not None:
        found.settle(wait=True)


def _settle_idle(evaluation: weakref.ref[Evaluation]) -> None:
    """Record what is still under way when the training pauses."""
    found = evaluation()
    if found is not None:
        found.settle_idle()
