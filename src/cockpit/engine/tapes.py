"""Tapes: which steps are replayed from a recording, which are recorded now, and what becomes of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.capture import Capture, Use
from cockpit.engine.derived import Derived
from cockpit.engine.factored import Vectors
from cockpit.engine.needs import Known
from cockpit.engine.requests import LAST, UPDATE, UPDATES
from cockpit.engine.scaling import Scaling
from cockpit.engine.statistics import SquareSum, Total
from cockpit.engine.step import Observed, Step
from cockpit.engine.tape import LIMIT, REPEATS, Asked, Received, Tape
from cockpit.engine.transfer import Transfer

MOST = 8
"""How many kinds of step are recorded (the last batch of an epoch, several schedules); further ones are not."""


class Tapes:
    """The recordings of one model."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._tapes: dict[Any, Tape] = {}
        self._counts: dict[Any, int] = {}
        self._last: dict[str, Tensor] = {}
        self._broken = False

    def collects(self, key: Any, asked: Asked, uses: Sequence[Use]) -> bool:
        """Say whether a step of this kind is to be collected: to be replayed, or to be recorded now."""
        if self._broken or not asked.possible:
            return False
        numbers = sum(sum(x.numel() for x in use.inputs) + sum(s.numel() for s in use.shapes) for use in uses)
        if 4 * numbers > LIMIT:
            return False
        tape = self._tapes.get(key)
        if tape is not None and not tape.in_place:
            self.forget()  # the model was moved
            tape = None
        if tape is not None:
            return True
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] > REPEATS and len(self._tapes) < MOST

    def evaluate(
        self,
        key: Any,
        asked: Asked,
        received: Received,
        losses: Tensor,
        last_update: Vectors,
    ) -> Tape | None:
        """Replay (or first record) a step; None: it has to go the ordinary way."""
        try:
            self._keep_last(asked, last_update)
            tape = self._tapes.get(key)
            if tape is None:
                tape = Tape(asked, self._capture, received, losses, self._last)
                self._tapes[key] = tape
            tape.run(received, losses)
            return tape
        except Exception as failure:  # something that cannot be captured: from now on without
            self._broken, self.reason = True, f"{type(failure).__name__}: {failure}"
            self.forget()
            return None

    def _keep_last(self, asked: Asked, last_update: Vectors) -> None:
        """Have places for the step before, and in them what the ordinary way left elsewhere."""
        if not {UPDATE, LAST, UPDATES} & set(asked.statistics):
            return
        for name, p in asked.parameters.items():
            if name not in self._last:
                self._last[name] = torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
        if LAST in asked.statistics:
            for name, (vector, _) in last_update.items():
                assert isinstance(vector, Tensor)  # factors are kept on CPUs only
                if vector is not self._last[name]:
                    self._last[name].copy_(vector)

    def forget(self) -> None:
        """Drop all recordings."""
        self._tapes.clear()
        self._counts.clear()

    def observed(self, step: Step, rates: Mapping[str, float] | None) -> Observed:
        """Send a replayed step's numbers to the host.

        ``rates`` are the learning rates of a plain step (None: it was none after all).
        """
        tape = step.tape
        assert tape is not None
        table, asked = step.table, tape.asked
        observed = Observed(asked.examples, table, {Known.LOSSES: None})
        observed.add(
            tape.layout, Transfer(tape.pack), Scaling(rates if asked.plain else None, step.last_factors)
        )
        layout, pack = tape.finish()
        if pack is not None:
            observed.add(layout, Transfer(pack))
        eager = asked.eager
        table.close([s for s in eager if not isinstance(s, Derived)])
        for s in eager:
            if isinstance(s, Derived):
                for source in s.sources:
                    if source in (SquareSum(), Total()):
                        table.enter(source, tape.table.by_parameter(source))
                table.derive(s, asked.examples)
        return observed

    def last_update(self, step: Step, rates: Mapping[str, float] | None) -> dict[str, tuple[Tensor, float]]:
        """Return the step taken, as it is kept."""
        tape = step.tape
        assert tape is not None
        if UPDATE not in tape.asked.statistics:
            return {}
        if not tape.asked.plain:
            return {name: (self._last[name], 1.0) for name in tape.asked.parameters}
        if rates is None:
            return {}
        scale = -1 / tape.asked.examples
        covered = set(tape.table.covered)  # the others had no gradient and did not move
        return {
            name: (self._last[name], scale * rates.get(name, 0.0) if name in covered else 0.0)
            for name in tape.asked.parameters
        }
