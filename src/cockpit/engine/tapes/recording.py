"""Recording: what a backward pass brings, noted call by call, so that passes like it can be replayed.

A pass is cut into segments. What the calls of a segment saw is copied into places, always the same, and from there
it is evaluated by a recording. A small model is one segment. Of a large one nothing could be kept until the pass is
over, so its segments share their places, and each is evaluated when the next one begins: by then autograd has summed
the gradients of its parameters, too.

Calls that cannot be replayed so are *loose* and go the ordinary way: those larger than all places, those of layers
that run again with the random numbers they had, and, where places are shared, those of weights used several times.
So do parameters that are not served by layers at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cockpit.engine.coverage.coverage import Plan, Way
from cockpit.engine.gradients.bunch import LARGEST
from cockpit.engine.scripts.copying import size_of
from cockpit.engine.seeing.use import Use

ALIGNED = 512
"""Bytes to which places are aligned, like those of the allocator."""

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Limits:
    """Bytes that may be copied."""

    whole: int
    """Of a whole pass; if it has more, it is cut into segments."""
    segment: int
    """Of a segment of several calls."""
    call: int
    """Of a single call."""


@dataclass(eq=False)
class Segment:
    """Calls that are evaluated together, first as noted (without memory), then in their places."""

    calls: list[tuple[Use, Grads]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """Of each call among those of its layer."""
    names: dict[str, Tensor] = field(default_factory=dict)
    """Parameters whose gradients are complete when it is evaluated, with the places of ``.grad``."""


def live(calls: Sequence[tuple[Use, Grads]]) -> list[Tensor]:
    """Return the tensors of calls in order."""
    return [t for use, grads in calls for t in (*use.inputs, *(g for g in grads if g is not None))]


class Recording:
    """Notes one backward pass; nothing of it is kept alive."""

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        numbers: Mapping[int, int],
        limits: Limits,
        whole: bool,
    ) -> None:
        self.plan, self.parameters, self.whole = plan, parameters, whole
        self._numbers, self._limits = numbers, limits
        self._names = {id(p): name for name, p in parameters.items()}
        self.order: list[tuple[str, int, int | None]] = []
        """Every call: its layer, its number there, and its segment (None: loose)."""
        self.loose = {n for n in parameters if not plan.ways[n].way.by_layers} - set(plan.names(Way.UNUSED))
        """Parameters of loose calls, and those that no layer's output gradients give."""
        self.segments: list[Segment] = []
        self.failure: Exception | None = None
        self._open: Segment | None = None
        self._bytes = 0

    def notice(self, use: Use, grads: Grads) -> None:
        """Take note of a call whose output gradients have come; what fails is kept in `failure`."""
        if self.failure is None:
            try:
                self._note(use, grads)
            except Exception as failure:
                self.failure = failure

    def _note(self, use: Use, grads: Grads) -> None:
        names = self.plan.served_by(use.module, self._names)
        number, size = self._numbers[id(use)], size_of(live([(use, grads)]))
        if self._is_loose(use, names, size):
            self._close()
            self.loose |= names
            self.order.append((use.name, number, None))
            return
        if not self.whole and self._bytes + size > self._limits.segment:
            self._close()
        if self._open is None:
            self._open = Segment()
            self.segments.append(self._open)
        self._bytes += size
        self._open.calls.append((use.at([_noted(x) for x in use.inputs]), tuple(map(_noted_or_none, grads))))
        self._open.numbers.append(number)
        self._open.names.update(dict.fromkeys(names, torch.empty(0)))
        self.order.append((use.name, number, len(self.segments) - 1))

    def _is_loose(self, use: Use, names: frozenset[str], size: int) -> bool:
        if use.refused is not None or not names or use.replay is not None:
            return True
        shared = any(self.plan.uses.get(name, 1) > 1 for name in names)
        return not self.whole and (shared or size > self._limits.call)

    def _close(self) -> None:
        """End a segment where another begins; a pass that is one segment ends when it is over."""
        if self._open is None or self.whole:
            return
        self._note_gradients(self._open)
        self._open, self._bytes = None, 0

    def _note_gradients(self, segment: Segment) -> None:
        for name in segment.names:
            grad = self.parameters[name].grad
            if grad is None or grad.layout is not torch.strided:
                raise RuntimeError(f"the gradient of {name} is not there when the next layer's comes")
            segment.names[name] = _noted(grad)

    def end(self) -> None:
        """Take note that the pass is over, and provide places."""
        if self.failure is not None:
            raise self.failure
        if self._open is not None:
            self._note_gradients(self._open)
        if not self.segments:
            raise RuntimeError("no layer to replay")
        if any(self.loose & set(segment.names) for segment in self.segments):
            raise RuntimeError("a parameter is used by calls that can be replayed and by others")
        staging = None if self.whole else _Staging(self.segments, self.parameters)
        for segment in self.segments:
            place = torch.zeros_like if staging is None else staging.places()
            device = next(iter(self.parameters.values())).device
            segment.calls = [
                (
                    use.at([place(x, device=device) for x in use.inputs]),
                    tuple(None if g is None else place(g, device=device) for g in grads),
                )
                for use, grads in segment.calls
            ]
            for name, grad in segment.names.items():
                own = torch.zeros_like if _waits(self.parameters[name]) else place
                segment.names[name] = own(grad, device=device)


def _waits(parameter: Tensor) -> bool:
    """Say whether a parameter may be looked at after all segments: its gradient needs a place of its own."""
    return parameter.numel() <= LARGEST


class _Staging:
    """Memory that all segments share, as large as the largest of them."""

    def __init__(self, segments: Sequence[Segment], parameters: Mapping[str, Tensor]) -> None:
        needed = max(
            sum(
                _aligned(t)
                for t in (*live(s.calls), *(g for n, g in s.names.items() if not _waits(parameters[n])))
            )
            for s in segments
        )
        device = next(iter(parameters.values())).device
        self._memory = torch.zeros(needed, dtype=torch.uint8, device=device)

    def places(self) -> Callable[..., Tensor]:
        """Return what gives out places, from the beginning."""
        start = 0

        def place(t: Tensor, device: torch.device) -> Tensor:
            nonlocal start
            piece = self._memory[start : start + t.numel() * t.element_size()].view(t.dtype)
            start += _aligned(t)
            return piece.as_strided(t.shape, t.stride())

        return place


def _aligned(t: Tensor) -> int:
    return -(-t.numel() * t.element_size() // ALIGNED) * ALIGNED


def _noted(t: Tensor) -> Tensor:
    """Return a tensor of the same form, dense, without memory."""
    return torch.empty_like(t, device="meta", requires_grad=False)


def _noted_or_none(t: Tensor | None) -> Tensor | None:
    return None if t is None else _noted(t)
