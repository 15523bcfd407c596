"""Curvature recorded on one graph and replayed for those like it.

Derivatives of a live graph are as many launches as the graph has operations, several times over, and for small models
launching is all that takes time. Recorded are the diagonals of a micro-batch, and products with its Hessian from a
fixed vector; what the graph's operations saved is copied to fixed places (`cockpit.engine.derivatives.saved`), on
which the recording was made by hand (`cockpit.engine.derivatives.derive`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.answers.reel import Layout, Reel
from cockpit.engine.answers.transfer import Arriving, Packed
from cockpit.engine.curvature.diagonals import Entry
from cockpit.engine.curvature.hessian import HessianProduct
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.derivatives.derive import by_hand
from cockpit.engine.derivatives.saved import Places, Saved
from cockpit.engine.needs import Diagonal
from cockpit.engine.scripts.notes import memory_of
from cockpit.engine.scripts.recorder import Recorder, reads

TOLERANCE = 1e-2
"""How far a replay may be from what it repeats, relative to its length: products of GPUs are rounded to 11 bits."""

Found = tuple[dict[Diagonal, Entry], HessianProduct | None]
"""The diagonals asked for, and the Hessian where products with it are."""


class CurvatureTape:
    """The curvature of one micro-batch, recorded.

    Args:
        subject: the micro-batch; its graph is as it was when this is made, and gives out places while it records.
        seen: what its graph has saved.
        recorder: of the device.
        measure: what is to be recorded; waits for nothing.
        generators: the random numbers that it draws are drawn anew by each replay.
    """

    def __init__(
        self,
        subject: Subject,
        seen: Saved,
        recorder: Recorder,
        measure: Callable[[Subject], Found],
        generators: Sequence[torch.Generator],
    ) -> None:
        self.names, self.generators, self._recorder = subject.names, generators, recorder
        self._spent = [weakref.ref(use) for use, _ in subject.uses]
        self._derived: weakref.WeakKeyDictionary[Any, Reel | None] = weakref.WeakKeyDictionary()
        """What was recorded beside it, by owner."""
        self.places = Places(seen)
        self.places.fill(seen)
        recorder.prepare()
        with self.places.taken(), by_hand():
            there = subject.at(self.places.more)
            self._replay, (self.entries, self.hessian) = recorder.record(partial(measure, there), generators)
            if self.hessian is not None:
                flat, hessian = self.hessian.flat, self.hessian
                self._vector = torch.zeros(flat.size, dtype=flat.dtype, device=flat.device)
                self._multiply, self._product = recorder.record(partial(hessian, self._vector))
        recorded = [self._replay] if self.hessian is None else [self._replay, self._multiply]
        handed_out = {memory_of(t) for entry in self.entries.values() for t in entry.tensors}
        self.places.narrow(lambda p: memory_of(p) in handed_out or any(reads(r, p) for r in recorded))

    def release(self) -> None:
        """Let go of what was kept for the backward pass of the recorded micro-batch, which is over.

        (The Hessian holds its graph, and the graph's hooks hold the inputs of its layers.)
        """
        while self._spent:
            if (use := self._spent.pop()()) is not None:
                use.release()

    def fits(self, subject: Subject, seen: Saved) -> bool:
        """Say whether another micro-batch may be measured by this recording."""
        return self.names == subject.names and self.places.fits(seen)

    def replay(self, seen: Saved, seeds: Sequence[int]) -> None:
        """Measure another micro-batch; `entries` are its own from then on, until the next one."""
        self.places.fill(seen)
        for generator, seed in zip(self.generators, seeds, strict=True):
            generator.manual_seed(seed)
        self._replay()

    def derived(
        self, owner: object, work: Callable[[], tuple[Layout, Packed]]
    ) -> tuple[Layout, Arriving] | None:
        """Return the numbers that follow from the diagonals and from what ``owner`` replays.

        None: they cannot be recorded.
        """
        if owner not in self._derived:
            try:
                self._derived[owner] = Reel(self._recorder, work)
            except Exception:
                self._derived[owner] = None
        reel = self._derived[owner]
        return None if reel is None else (reel.layout, reel.replay())

    def product(self, vector: Tensor) -> Tensor:
        """Return the product of the Hessian with a flat vector."""
        self._vector.copy_(vector)
        self._multiply()
        return self._product.clone()


def agree(found: Tensor, truth: Tensor) -> bool:
    """Say whether a replay gives what it should (or both are nothing a number could be compared with)."""
    distance, length = (found - truth).norm(), truth.norm()
    return bool(distance <= TOLERANCE * length) or not bool(length.isfinite())
