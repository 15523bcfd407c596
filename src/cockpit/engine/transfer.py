"""Transfer: all numbers of a step on their way to the host, in one asynchronous copy.

The training thread never waits for the device: a step's numbers are packed into one vector (two where some are
integers), copied into pinned memory behind whatever the device is doing, and read when the copy has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cockpit.engine.precision import wide_dtype

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Packed:
    """Tensors in one vector of floats and one of integers, and how to take them apart again."""

    floats: Tensor | None
    integers: Tensor | None
    shapes: tuple[tuple[torch.Size, bool], ...]
    """Shape of every tensor, and whether it holds integers."""


def packed(tensors: Sequence[Tensor]) -> Packed:
    """Pack tensors in the order given; floats become float64, integers int64."""
    shapes = tuple((t.shape, not t.is_floating_point()) for t in tensors)
    device = next((t.device for t in tensors if t.is_cuda), tensors[0].device)
    floats: list[Tensor] = []
    integers: list[Tensor] = []
    for t, (shape, whole) in zip(tensors, shapes, strict=True):
        flat = t if len(shape) == 1 else t.reshape(-1)
        (integers if whole else floats).append(flat if flat.device == device else flat.to(device))
    return Packed(
        _joined(floats, wide_dtype(device)) if floats else None,
        _joined(integers, torch.int64) if integers else None,
        shapes,
    )


def _joined(flats: list[Tensor], dtype: torch.dtype) -> Tensor:
    kinds = {t.dtype for t in flats}
    if len(kinds) == 1 or not flats[0].is_cuda:
        return torch.cat(flats).to(dtype)
    # `torch.cat` would launch a kernel for each tensor of another type.
    joined = torch.empty(sum([t.numel() for t in flats]), dtype=dtype, device=flats[0].device)
    places = joined.split([t.numel() for t in flats])
    for kind in kinds:
        pairs = [(place, t) for place, t in zip(places, flats, strict=True) if t.dtype == kind]
        torch._foreach_copy_([place for place, _ in pairs], [t for _, t in pairs])
    return joined


Slot = tuple[Tensor, torch.cuda.Event]
_SLOTS: dict[tuple[torch.device, torch.dtype, int], list[Slot]] = {}
"""Pinned memory that is free again, with an event: both are slow to make, and every step takes the same."""
MOST_SIZES = 64


class Transfer:
    """Packed numbers on their way."""

    def __init__(self, pack: Packed) -> None:
        self.shapes = pack.shapes
        self._slots: list[tuple[Tensor, torch.cuda.Event, list[Slot]]] = []
        self._here = [self._sent(pack.floats), self._sent(pack.integers)]

    def _sent(self, flat: Tensor | None) -> Tensor | None:
        if flat is None or not flat.is_cuda:
            return None if flat is None else flat.cpu()
        if len(_SLOTS) > MOST_SIZES:
            _SLOTS.clear()
        free = _SLOTS.setdefault((flat.device, flat.dtype, flat.numel()), [])
        slot = (
            free.pop()
            if free
            else (torch.empty_like(flat, device="cpu", pin_memory=True), torch.cuda.Event())
        )
        here, event = slot
        here.copy_(flat, non_blocking=True)
        event.record(torch.cuda.current_stream(flat.device))
        self._slots.append((*slot, free))
        return here

    @property
    def size(self) -> int:
        """How many bytes they are."""
        return sum(flat.nbytes for flat in self._here if flat is not None)

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return all(event.query() for _, event, _ in self._slots)

    def stacks(self, sizes: Sequence[int]) -> list[Array]:
        """Return runs of so many equally shaped tensors as arrays [size, …], what is left one by one; may wait."""
        return taken_apart(self.arrays(), self.shapes, sizes)

    def arrays(self) -> list[Array | None]:
        """Return all floats and all integers, each in one vector (None: there are none); may wait."""
        if self._slots:
            for _, event, _ in self._slots:
                event.synchronize()
            self._here = [None if flat is None else flat.clone() for flat in self._here]
            for here, event, free in self._slots:
                free.append((here, event))
            self._slots = []
        return [None if flat is None else flat.numpy() for flat in self._here]


def taken_apart(
    arrays: Sequence[Array | None], shapes: Sequence[tuple[torch.Size, bool]], sizes: Sequence[int]
) -> list[Array]:
    """Cut vectors [..., numbers] into runs of equally shaped tensors, [..., size, …]; what is left one by one."""
    starts, found, k = [0, 0], [], 0
    for size in (*sizes, *[0] * (len(shapes) - sum(sizes))):
        shape, whole = shapes[k]
        array, start = arrays[whole], starts[whole]
        assert array is not None
        starts[whole] = stop = start + shape.numel() * max(1, size)
        lead = array.shape[:-1]
        piece = array[..., start:stop].reshape((*lead, size, *shape) if size else (*lead, *shape))
        found.append(piece if whole or piece.dtype == np.float64 else piece.astype(np.float64))
        k += max(1, size)
    return found
