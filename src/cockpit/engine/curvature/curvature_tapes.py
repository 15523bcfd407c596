"""Curvature tapes: of which micro-batches the curvature is recorded, and which of them are like a recorded one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from cockpit.engine.curvature.curvature_tape import CurvatureTape, Found, agree
from cockpit.engine.curvature.diagonals import Learnt
from cockpit.engine.curvature.hessian import FlatParameters, HessianProduct
from cockpit.engine.curvature.loss_kinds import Kinds
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.derivatives.graph import nodes_behind
from cockpit.engine.derivatives.saved import is_packed
from cockpit.engine.needs import Need
from cockpit.engine.scripts.copying import size_of
from cockpit.engine.scripts.recorder import ON_CPU, Recorder
from cockpit.errors import Gap

MOST = 4
"""How many kinds of micro-batches are recorded (the last batch of an epoch, several schedules)."""
KINDS = 64
"""How many are counted; where there are more (lengths of texts), all are counted anew."""
REPEATS = 3
"""How often a kind must have come before it is recorded."""
MISSES = 8
"""How often in a row a micro-batch may differ from the recorded one before recording is given up."""
BY_HAND = 2**15
"""How many parameters a model must have for products by hand: the calls of its operations are made in Python."""
AN_OPERATION = 2**9
"""And how many for each of its operations: recurrences have thousands that are small."""
PLACES, ALL = 16, 4
"""One part in so many of the free memory may be taken for places, and for all that a recording keeps: it keeps it."""


@dataclass(eq=False)
class Kind:
    """Micro-batches that may be alike."""

    subjects: int = 0
    """How many have come."""
    tape: CurvatureTape | None = None
    refused: str = ""
    """Why nothing is recorded any more."""
    missed: int = 0
    gaps: dict[Need, Gap] = field(default_factory=dict)
    """What cannot be measured of any of them."""
    learnt: Learnt | None = None
    """What is known of their plan, where diagonals are measured."""
    by_hand: bool = False
    """Whether products with their Hessians are made by hand, where nothing is recorded: it has been compared."""

    def examines(self, parameters: Iterable[str], kinds: Kinds) -> bool:
        """Say whether something is to be looked at next time that is taken for granted most of the time."""
        if self.learnt is None:
            return False
        agreement, operations = self.learnt.agreement, self.learnt.operations
        if agreement is not None and not agreement.differ and agreement.due(list(parameters)):
            return True
        return operations is not None and kinds.due(operations)

    def count(self, kinds: Kinds) -> None:
        """Take note of a replay: another use that was not looked at."""
        if self.learnt is None:
            return
        if self.learnt.operations is not None:
            kinds.count(self.learnt.operations)
        if self.learnt.agreement is not None:
            self.learnt.agreement = self.learnt.agreement.next()


class CurvatureTapes:
    """The recordings of one model.

    Args:
        recorder: returns what makes them, with memory that nothing else uses.
        memory: how many bytes may be kept of a micro-batch; None: a share of what is free.
    """

    def __init__(self, recorder: Callable[[], Recorder], memory: int | None = None) -> None:
        self._new_recorder, self._memory = recorder, memory
        self._kinds: dict[Hashable, Kind] = {}

    @cached_property
    def _recorder(self) -> Recorder:
        return self._new_recorder()

    def kind(self, key: Hashable, learnt: Learnt | None) -> Kind:
        """Return the kind of a micro-batch, and count it."""
        if key not in self._kinds and len(self._kinds) >= KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault(key, Kind(learnt=learnt))
        kind.subjects += 1
        return kind

    def forget(self) -> None:
        """Drop all recordings."""
        self._kinds.clear()

    def begin(self, kind: Kind, subject: Subject, seeds: Callable[[], Sequence[int]]) -> CurvatureTape | None:
        """Replay the recording of a kind, if it is of micro-batches like this one."""
        tape = kind.tape
        if tape is None:
            return None
        try:
            seen = subject.saved()
            if tape.fits(subject, seen):
                tape.release()
                kind.missed = 0
                tape.replay(seen, seeds())
                return tape
            kind.missed += 1
            if kind.missed > MISSES:
                kind.tape, kind.refused = None, "every micro-batch is another"
        except Exception as failure:
            kind.tape, kind.refused = None, f"{type(failure).__name__}: {failure}"
        return None

    def due(self, kind: Kind) -> bool:
        """Say whether a micro-batch that was just measured is to be recorded."""
        recorded = sum(other.tape is not None for other in self._kinds.values())
        return not kind.refused and kind.tape is None and kind.subjects > REPEATS and recorded < MOST

    def record(
        self,
        kind: Kind,
        subject: Subject,
        measure: Callable[[Subject], Found],
        generators: Sequence[torch.Generator],
        seeds: Sequence[int],
        truth: Found,
        hessian: HessianProduct | None,
    ) -> None:
        """Record a micro-batch of which the truth is known, and keep the recording if it repeats that.

        ``measure`` draws from ``generators``; the truth was drawn with ``seeds``. ``hessian`` is what was multiplied
        with, for whatever.
        """
        agreement = None if kind.learnt is None else kind.learnt.agreement
        try:
            if subject.again:
                raise RuntimeError("a layer has to run again, with the random numbers it had")
            kind.by_hand = not is_packed(subject.losses) and _served_by_hand(subject, hessian)
            # If the user's code packs what is saved, it would have to unpack it again and again: an error here.
            seen, room = subject.saved(), _Room(subject.losses.device, self._memory)
            room.insist(seen.size, _size(truth))
            tape = CurvatureTape(subject, seen, self._recorder, measure, generators)
            room.insist_now()
            tape.replay(seen, seeds)
            if not _repeats(tape, truth):
                raise RuntimeError("a replay does not give what the ordinary way gives")
            kind.tape = tape
        except Exception as failure:
            kind.refused = f"{type(failure).__name__}: {failure}"
        if kind.learnt is not None:
            kind.learnt.agreement = agreement  # to record is not to look


class _Room:
    """Memory of a device that may be taken for good."""

    def __init__(self, device: torch.device, most: int | None) -> None:
        self._device, self._most, self._free, self._reserved = device, most, 0, 0
        if device.type == "cuda":
            self._reserved = torch.cuda.memory_reserved(device)
            unused = self._reserved - torch.cuda.memory_allocated(device)
            self._free = torch.cuda.mem_get_info(device)[0] + unused

    def insist(self, size: int, model: int) -> None:
        """Raise an error if fixed places of this size would take much of it, or the model is too large for a CPU."""
        if self._device.type == "cpu" and size + model > ON_CPU:
            raise RuntimeError(f"{size + model} bytes are more than what is recorded on a CPU, {ON_CPU}")
        if self._most is not None and size > self._most:
            raise RuntimeError(f"{size} bytes would be kept, more than {self._most}")
        self._compare(size, PLACES)

    def insist_now(self) -> None:
        """Raise an error if a recording has taken much of it."""
        if self._device.type == "cuda":
            self._compare(torch.cuda.memory_reserved(self._device) - self._reserved, ALL)

    def _compare(self, size: int, part: int) -> None:
        if self._device.type == "cuda" and size > self._free // part:
            raise RuntimeError(
                f"{size >> 20} MiB would be kept, of {self._free >> 20} MiB that are free: more than 1/{part}"
            )


def _size(truth: Found) -> int:
    """Return how many bytes a vector of the model's size has."""
    entries, hessian = truth
    sizes = [size_of([*entry.by_parameter.values()]) for entry in entries.values()]
    return max([*sizes, 0 if hessian is None else hessian.flat.size * hessian.flat.dtype.itemsize])


def _served_by_hand(subject: Subject, hessian: HessianProduct | None) -> bool:
    """Say whether products by hand are those of the Hessian, and faster: on a CPU, of matrices that are not small."""
    if hessian is None or subject.losses.device.type != "cpu":
        return False
    if hessian.flat.size < max(BY_HAND, AN_OPERATION * len(nodes_behind(subject.losses))):
        return False
    try:
        parameters = dict(zip(hessian.flat.names, hessian.flat.tensors, strict=True))
        other = HessianProduct([(subject.losses, 1.0)], parameters, hand=True)
        signs = _signs(hessian.flat)
        return agree(other(signs), hessian(signs))
    except Exception:  # whatever it is: there is the ordinary way
        return False


def _signs(flat: FlatParameters) -> Tensor:
    """Return a vector to multiply with."""
    signs = torch.ones(flat.size, dtype=flat.dtype, device=flat.device)
    signs[::2] = -1
    return signs


def _repeats(tape: CurvatureTape, truth: Found) -> bool:
    """Say whether a tape that was replayed gives what is known to be true."""
    entries, hessian = truth
    pairs: list[tuple[Tensor, Tensor]] = []
    for need, entry in entries.items():
        found = tape.entries[need]
        if found.method != entry.method or found.by_parameter.keys() != entry.by_parameter.keys():
            return False
        pairs += [(found.by_parameter[name], value) for name, value in entry.by_parameter.items()]
    if hessian is not None:
        signs = _signs(hessian.flat)
        pairs.append((tape.product(signs), hessian(signs)))
    return all(agree(found, truth) for found, truth in pairs)
