"""Tapes: which steps are replayed from a recording, which are recorded now, and what becomes of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.answers.observed import Observed
from cockpit.engine.answers.reel import Layout
from cockpit.engine.answers.requests import UPDATE
from cockpit.engine.answers.scaling import Scaling
from cockpit.engine.answers.table import Table
from cockpit.engine.answers.transfer import Packed
from cockpit.engine.curvature.curvature_tape import CurvatureTape
from cockpit.engine.derived import Derived
from cockpit.engine.needs import Known
from cockpit.engine.scripts.copying import size_of
from cockpit.engine.scripts.recorder import ON_CPU, Recorder
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use
from cockpit.engine.statistics import SquareSum, Total
from cockpit.engine.steps.batch import Batch, too_large
from cockpit.engine.steps.factored import Vectors
from cockpit.engine.steps.step import Step
from cockpit.engine.tapes.loose import Loose
from cockpit.engine.tapes.recording import Limits, Recording
from cockpit.engine.tapes.replay import Replay
from cockpit.engine.tapes.tape import Asked, Tape, numbers_of

MOST = 8
"""How many kinds of step are recorded (the last batch of an epoch, several schedules); further ones are not."""
SEEN = 64
"""How many kinds are counted; where there are more (lengths of texts, weights that change), all are counted anew."""
REPEATS = 2
"""How often a step must have come before it is recorded."""
NEVER = -(2**62)
"""How often one is said to have come that is not to be recorded."""
SMALL = 64 * 2**20
"""How many bytes may always be copied for a step."""
LARGEST_CALL = 3
"""How large a single call may be, relative to what may be kept, where nobody has said how much that is."""
COPIED = 256 * 2**20
"""How many bytes a call may have that is copied: with larger ones the device is busy, the host has time to launch."""


class Tapes:
    """The recordings of one model, which is on one device."""

    def __init__(self, capture: Capture, device: torch.device) -> None:
        self._capture, self._device = capture, device
        self._tapes: dict[Any, Tape] = {}
        self._counts: dict[Any, int] = {}
        self._last: dict[str, Tensor] = {}
        self._memory = 0
        self._taken: tuple[Any, Any, dict[str, tuple[Tensor, float]]] = (None, None, {})
        """The last step taken, of a kind and at rates; most are like the one before."""
        self._scaling = Scaling()
        """Of the last step, likewise."""
        self.failure: str | None = None
        """Why nothing is recorded any more. (Its words: an exception would keep the whole pass alive.)"""

    @cached_property
    def recorder(self) -> Recorder:
        """What records on the device; whoever records does it there, since recordings share their memory."""
        return Recorder.of(self._device)

    def begin(
        self,
        key: Any,
        last_update: Vectors,
        loose: Callable[[Tape], Batch],
    ) -> Replay | None:
        """Begin to replay a step of this kind; None: there is no recording of it."""
        tape = self._tapes.get(key)
        if tape is None or self.failure is not None:
            return None
        if not tape.in_place:
            self.forget()  # the model was moved
            return None
        self._keep_last(tape.asked, last_update)
        return Replay(tape, Loose(loose(tape), tape.asked) if tape.loose else None)

    def begin_recording(
        self,
        key: Any,
        asked: Asked,
        uses: Sequence[Use],
        numbers: Mapping[int, int],
        memory: int,
        fixed: bool = False,
    ) -> Recording | None:
        """Begin to record a step, if it has come often enough.

        ``memory`` is how much may be kept from a pass; ``fixed``: the user has said so.
        """
        if self.failure is not None or key in self._tapes or not asked.possible:
            return None
        if key not in self._counts and len(self._counts) >= SEEN:
            self._counts.clear()
        if key not in self._counts and self._too_large(asked, uses, memory, fixed):
            self._counts[key] = NEVER
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] <= REPEATS or len(self._tapes) >= MOST:
            return None
        self._memory = memory
        whole = max(SMALL, memory) if asked.late else SMALL
        limits = Limits(
            whole, max(SMALL, memory // 4), min(COPIED, memory if fixed else LARGEST_CALL * memory)
        )
        return Recording(asked.plan, asked.parameters, numbers, limits, _size(uses) <= limits.whole)

    def _too_large(self, asked: Asked, uses: Sequence[Use], memory: int, fixed: bool) -> bool:
        """Say whether a step is too large for a CPU to be recorded."""
        if self._device.type != "cpu":
            return False
        return _size(uses) + size_of([*asked.parameters.values()]) > _most_on_cpu(memory, fixed)

    def expects(self, key: Any) -> bool:
        """Say whether steps of this kind will be replayed when they have come often enough."""
        return self.failure is None and (key in self._tapes or self._counts.get(key, NEVER) > 0)

    def record(self, key: Any, asked: Asked, recording: Recording, losses: Tensor | None) -> None:
        """Record a step that was noted; what cannot be recorded goes the ordinary way from now on."""
        try:
            recording.end()
            self._keep_last(asked, {})
            self.recorder.prepare()
            self._tapes[key] = Tape(asked, self._capture, recording, losses, self._last, self.recorder)
        except Exception as failure:
            self.give_up(failure)

    def give_up(self, failure: Exception) -> None:
        """Record and replay nothing from now on."""
        self.failure = f"{type(failure).__name__}: {failure}"
        self.forget()

    def _keep_last(self, asked: Asked, last_update: Vectors) -> None:
        """Have places for the step before, and in them what the ordinary way left elsewhere."""
        if not asked.remembers:
            return
        if not asked.parameters.keys() <= self._last.keys():
            for name, p in asked.parameters.items():
                dtype = torch.promote_types(p.dtype, torch.float32)
                self._last.setdefault(name, torch.zeros_like(p, dtype=dtype))
        if asked.recalls:
            for name, (vector, _) in last_update.items():
                if vector is not self._last[name]:
                    self._last[name].copy_(vector if isinstance(vector, Tensor) else vector.dense())

    def forget(self) -> None:
        """Drop all recordings."""
        self._tapes.clear()
        self._counts.clear()

    def observed(
        self, step: Step, rates: Mapping[str, float] | None, curved: CurvatureTape | None = None
    ) -> Observed:
        """Send a replayed step's numbers to the host.

        Args:
            step: the step.
            rates: the learning rates of a plain step (None: it was none after all).
            curved: the recording that its curvature was replayed from, if it was and nobody asks for all of it.
        """
        replay = step.replay
        assert replay is not None
        tape, table = replay.tape, step.table
        asked = tape.asked
        observed = Observed(asked.examples, table, {} if tape.losses is None else {Known.LOSSES: None})
        observed.add(tape.end.layout, replay.row)
        numbers = tape.finish()
        if numbers is not None:
            observed.add(*numbers)
        if tape.cut and asked.late:
            table.void(UPDATE, too_large(self._memory))
        if replay.loose is not None:
            replay.loose.observe(observed, {name: self._last[name] for name in tape.loose if asked.late})
        observed.scaling = self._scaled(rates if asked.plain else None, step.last_factors)
        derived = None
        if curved is not None and replay.loose is None:
            derived = curved.derived(tape, partial(_packed_with, curved, replay))
        if derived is None and asked.eager:
            _derive(table, replay)
        elif derived is not None:
            observed.add(*derived)
        return observed

    def _scaled(self, rates: Mapping[str, float] | None, last: Mapping[str, float]) -> Scaling:
        if self._scaling.rates is not rates or self._scaling.last != last:
            self._scaling = Scaling(rates, last)
        return self._scaling

    def last_update(self, step: Step, rates: Mapping[str, float] | None) -> dict[str, tuple[Tensor, float]]:
        """Return the step taken, as it is kept."""
        assert step.replay is not None
        asked, tape = step.replay.tape.asked, step.replay.tape
        if not asked.steps or (tape.cut and asked.late):
            return {}
        if not asked.plain:
            return {name: (self._last[name], 1.0) for name in asked.parameters}
        if rates is None:
            return {}
        if self._taken[0] is not asked or self._taken[1] is not rates:
            moved = {name: -rates.get(name, 0.0) for name in asked.used}  # the others had no gradient
            found = {name: (self._last[name], moved.get(name, 0.0)) for name in asked.parameters}
            self._taken = asked, rates, found
        return self._taken[2]


def _size(uses: Sequence[Use]) -> int:
    """Return how many bytes calls see and give out."""
    size = sum(4 * sum(s.numel() for s in use.shapes) for use in uses)
    return size + sum(x.numel() * x.element_size() for use in uses for x in use.inputs)


def _most_on_cpu(memory: int, fixed: bool) -> int:
    """Return how many bytes of calls and parameters a step on a CPU may have that is recorded."""
    return min(ON_CPU, memory) if fixed else ON_CPU


def _derive(table: Table, replay: Replay) -> None:
    """Compute what rests on curvature that was entered in a table."""
    asked = replay.tape.asked
    table.close([s for s in asked.eager if not isinstance(s, Derived)])
    for s in asked.eager:
        if isinstance(s, Derived):
            for source in s.sources:
                if source in (SquareSum(), Total()):
                    table.enter(source, replay.by_parameter(source))
            table.derive(s, asked.examples)


def _packed_with(curved: CurvatureTape, replay: Replay) -> tuple[Layout, Packed]:
    """Return the numbers that rest on replayed curvature."""
    asked = replay.tape.asked
    table = Table(asked.parameters)
    table.begin(asked.examples, asked.used, {})
    for need, entry in curved.entries.items():
        entry.enter(need, table)
    _derive(table, replay)
    return numbers_of(table)
