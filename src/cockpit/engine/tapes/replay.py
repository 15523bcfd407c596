"""Replay: a backward pass on its way through a recording."""

from __future__ import annotations

from torch import Tensor

from cockpit.engine.answers.transfer import Arriving
from cockpit.engine.scripts.copying import Copies
from cockpit.engine.seeing.use import Use
from cockpit.engine.statistics import Statistic
from cockpit.engine.tapes.loose import Loose
from cockpit.engine.tapes.recording import Grads, live
from cockpit.engine.tapes.tape import Tape

ANOTHER = "the backward pass took another way than when it was recorded"


class Replay:
    """Copies what arrives to its places and evaluates segment by segment.

    A pass that does not go the recorded way is a ``failure``; if nothing of it has been given up by then, ``received``
    holds all of it.
    """

    def __init__(self, tape: Tape, loose: Loose | None) -> None:
        self.tape, self.loose = tape, loose
        self.lost = tape.cut or loose is not None
        """Whether what arrives is let go of before the pass is over."""
        self.received: list[tuple[Use, Grads]] = []
        self.failure: Exception | None = None
        self._arrived = self._evaluated = 0
        self._copies = Copies()
        """Of the open segment, where places are shared."""
        self._taken = 0
        """How many of its calls have come."""
        self.row: Arriving
        """The numbers known when the pass is over."""

    def receive(self, use: Use, grads: Grads) -> None:
        """Take a call's output gradients; what fails is kept in `failure`."""
        if not self.lost:  # all of it is kept, and looked at when the pass is over
            self.received.append((use, grads))
            return
        if self.failure is not None:
            return
        try:
            segment = self._segment_of(use)
            if self._taken and segment != self._evaluated:
                self._evaluate()
            if segment is None and self.loose is not None:
                self.loose.receive(use, grads)
            elif self.tape.cut:
                self._take(use, grads)
            else:
                self.received.append((use, grads))
        except Exception as failure:
            self.failure = failure

    def _segment_of(self, use: Use) -> int | None:
        names, k = self.tape.names, self._arrived
        if k >= len(names) or names[k] != use.name:
            raise RuntimeError(ANOTHER)
        self._arrived += 1
        return self.tape.order[k][2]

    def _take(self, use: Use, grads: Grads) -> None:
        """Copy what is large at once, so that nothing large is kept alive until the segment is complete."""
        self._copies.add(self.tape.calls[self._evaluated][self._taken], live([(use, grads)]))
        self._taken += 1

    def _evaluate(self) -> None:
        """Evaluate the segment that is complete."""
        segment = self.tape.segments[self._evaluated]
        self._copies.add(list(segment.names.values()), self._gradients())
        self._copies.end()
        self.tape.segment_replays[self._evaluated]()
        self._taken = 0
        self._evaluated += 1

    def _whole(self) -> list[Tensor]:
        """Return what the only segment of a pass is evaluated from."""
        return [*live(self.received), *self._gradients()]

    def _gradients(self) -> list[Tensor]:
        """Return what stands in ``.grad`` of the parameters of the open segment."""
        segment, parameters = self.tape.segments[self._evaluated], self.tape.asked.parameters
        return [grad for name in segment.names if (grad := parameters[name].grad) is not None]

    def end(self, losses: Tensor | None) -> None:
        """Evaluate the rest, when the pass is over."""
        if self.failure is not None:
            raise self.failure
        if not self.lost and [use.name for use, _ in self.received] != self.tape.names:
            raise RuntimeError(ANOTHER)
        if self.lost and self._arrived < len(self.tape.names):
            raise RuntimeError("the backward pass ended before the recorded one")
        if self._taken:
            self._evaluate()
        given = [] if self.tape.losses is None or losses is None else [losses]
        self.tape.copier.copy([*given, *([] if self.tape.cut else self._whole())])
        if self.loose is not None:
            self.loose.end(self.tape.last)
        self.row = self.tape.end.replay()

    def by_parameter(self, statistic: Statistic) -> dict[str, Tensor]:
        """Return a statistic as large as the parameters."""
        loose = {} if self.loose is None else self.loose.table.by_parameter(statistic)
        return {**self.tape.table.by_parameter(statistic), **loose}
