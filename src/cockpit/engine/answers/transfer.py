"""Transfer: all numbers of a step on their way to the host, in one asynchronous copy.

The training thread never waits for the device: a step's numbers are packed into one vector (two where some are
integers), copied into pinned memory behind whatever the device is doing, and read when the copy has arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cockpit.engine.native.vectors import words
from cockpit.engine.numbers.precision import wide_dtype

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Packed:
    """Tensors in one vector of floats and one of integers, and how to take them apart again."""

    floats: Tensor | None
    integers: Tensor | None
    shapes: tuple[tuple[torch.Size, bool], ...]
    """Shape of every tensor, and whether it holds integers."""
    words: Tensor | None = None
    """Both in one vector of int64, where they lie so."""

    def joined(self) -> Tensor:
        """Return both in one vector of int64, floats (float64) by their bits."""
        if self.words is not None:
            return self.words
        floats = [] if self.floats is None else [self.floats.view(torch.int64)]
        return torch.cat([*floats, *([] if self.integers is None else [self.integers])])


def packed(tensors: Sequence[Tensor]) -> Packed:
    """Pack tensors in the order given; floats become float64, integers int64."""
    shapes = tuple((t.shape, not t.is_floating_point()) for t in tensors)
    device = next((t.device for t in tensors if t.is_cuda), tensors[0].device)
    floats: list[Tensor] = []
    integers: list[Tensor] = []
    for t, (shape, whole) in zip(tensors, shapes, strict=True):
        flat = t if len(shape) == 1 else t.reshape(-1)
        (integers if whole else floats).append(flat if flat.device == device else flat.to(device))
    if device.type == "cpu" and (row := words([*floats, *integers])) is not None:
        split = sum([t.numel() for t in floats])
        return Packed(
            row[:split].view(torch.float64) if floats else None,
            row[split:] if integers else None,
            shapes,
            row,
        )
    return Packed(
        _joined(floats, wide_dtype(device)) if floats else None,
        _joined(integers, torch.int64) if integers else None,
        shapes,
    )


def _joined(flats: list[Tensor], dtype: torch.dtype) -> Tensor:
    if len(flats) == 1:
        return flats[0].to(dtype, copy=True)
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


class Sent:
    """A vector on its way to the host, from a GPU behind whatever the present stream is doing."""

    def __init__(self, flat: Tensor) -> None:
        self._here, self._slot, self._free = flat, None, list[Slot]()
        if not flat.is_cuda:
            self._here = flat.cpu()
            return
        if len(_SLOTS) > MOST_SIZES:
            _SLOTS.clear()
        self._free = _SLOTS.setdefault((flat.device, flat.dtype, flat.numel()), [])
        try:  # (not "if there is one": another thread may take it)
            self._slot = self._free.pop()
        except IndexError:
            self._slot = torch.empty_like(flat, device="cpu", pin_memory=True), torch.cuda.Event()
        self._here, event = self._slot
        self._here.copy_(flat, non_blocking=True)
        event.record(torch.cuda.current_stream(flat.device))

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self._here.nbytes

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._slot is None or self._slot[1].query()

    def read(self) -> Tensor:
        """Return it; may wait."""
        if self._slot is not None:
            self._slot[1].synchronize()
            self._here = self._here.clone()
            self._free.append(self._slot)
            self._slot = None
        return self._here


class Arriving(ABC):
    """Packed numbers on their way."""

    shapes: tuple[tuple[torch.Size, bool], ...]
    """As `Packed` has them."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many bytes they are."""

    @property
    @abstractmethod
    def arrived(self) -> bool:
        """Whether reading would not wait."""

    @abstractmethod
    def hasten(self) -> None:
        """Have them sent now, if they wait for others."""

    @abstractmethod
    def arrays(self) -> list[Array | None]:
        """Return all floats and all integers, each in one vector (None: there are none); may wait."""

    def stacks(self, sizes: Sequence[int]) -> list[Array]:
        """Return runs of so many equally shaped tensors as arrays [size, …], what is left one by one; may wait."""
        return taken_apart(self.arrays(), self.shapes, sizes)


class Transfer(Arriving):
    """Numbers that were sent at once."""

    def __init__(self, pack: Packed) -> None:
        self.shapes = pack.shapes
        self._sent = [None if flat is None else Sent(flat) for flat in (pack.floats, pack.integers)]

    @property
    def size(self) -> int:
        """How many bytes they are."""
        return sum(sent.nbytes for sent in self._sent if sent is not None)

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return all(sent.arrived for sent in self._sent if sent is not None)

    def hasten(self) -> None:
        """Do nothing: they are on their way."""

    def arrays(self) -> list[Array | None]:
        """Return all floats and all integers, each in one vector (None: there are none); may wait."""
        return [None if sent is None else sent.read().numpy() for sent in self._sent]


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
