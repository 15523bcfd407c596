"""Reel: the numbers of the latest replays of a recording, one row each, brought to the host many rows at a time.

A copy to the host and its event take the training thread as long as the rest of a small step. So a recording ends by
winding its reel on, on the device: all rows move by one, the oldest falls off, the new one comes last. Whenever as many
are new as there is room for, or somebody asks, all of them are copied together.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cockpit.engine.answers.transfer import Array, Arriving, Packed, Sent
from cockpit.engine.scripts.recorder import Recorder, feed_of
from cockpit.engine.scripts.script import Feed
from cockpit.engine.statistics import Statistic

LONGEST = 16
"""Rows of a reel at most."""
ON_CPU = 1
"""Rows of one on a CPU, which need not go and fetch them."""
ROOM = 2**18
"""Bytes of a reel at most; numbers larger than half of that are copied at every step."""

Layout = list[tuple[Statistic, tuple[str, ...]]]
"""Which statistics of which parameters are packed, in order."""


class Reel:
    """A recording whose replays make numbers.

    Args:
        recorder: of the device.
        work: what is to be recorded; it returns the numbers, packed, and what they are.
    """

    layout: Layout

    def __init__(self, recorder: Recorder, work: Callable[[], tuple[Layout, Packed]]) -> None:
        # Not made while recording: that memory is used for something else at the beginning of each replay.
        self._longest = LONGEST if recorder.device.type == "cuda" else ON_CPU
        self.wound = torch.empty(
            ROOM // 8 if self._longest > 1 else 0, dtype=torch.int64, device=recorder.device
        )
        """All rows side by side, the newest last."""
        self._replay, (self.layout, pack) = recorder.record(partial(self._recorded, work))
        self._pack = pack  # (its memory is written by every replay)
        self._form = Form(pack)
        self._here: npt.NDArray[Any] | None = self.wound.numpy() if self._longest == 1 else None
        self._lock = threading.Lock()  # the writing thread asks for rows, too, when the training pauses
        self._open: Callable[[], Copy | None] = _nobody
        """The copy to which the next row belongs, as long as somebody waits for one of its rows."""

    def _recorded(self, work: Callable[[], tuple[Layout, Packed]]) -> tuple[Layout, Packed]:
        layout, pack = work()
        row = pack.joined()
        self.rows = max(1, min(self._longest, ROOM // max(1, row.nbytes)))
        self.wound = self.wound[: self.rows * len(row)] if self.rows > 1 else row
        if self.rows > 1:
            # (Not `copy_`: a graph that holds copies takes several times as long to launch as one of kernels only.)
            torch._foreach_copy_([self.wound], [torch.cat([self.wound[len(row) :], row])])
        return layout, pack

    def feed(self, place: Tensor) -> Feed | None:
        """Return what lets replays read a tensor elsewhere, if anything does."""
        return feed_of(self._replay, place)

    def replay(self) -> Arriving:
        """Do the work again; return its numbers."""
        with self._lock:
            self._replay()
            if self._here is not None:
                return Here(self._form, self._here.copy())
            if (copy := self._open()) is None:
                copy = Copy(self)
                self._open = weakref.ref(copy)
            copy.count += 1
            if self.wound.is_cuda:
                copy.stream = torch._C._cuda_getCurrentRawStream(self.wound.device.index)
            if copy.count == self.rows:
                self._send(copy)
            return Row(self._form, copy)

    def send(self, copy: Copy) -> None:
        """Begin to copy, unless that has begun."""
        with self._lock:
            if copy is self._open():
                self._send(copy)

    def _send(self, copy: Copy) -> None:
        self._open = _nobody
        copy.begin(self.wound)


class Copy:
    """Some rows in a row, on their way to the host."""

    def __init__(self, reel: Reel) -> None:
        self.count = 0
        """How many they are: the last ones on the reel."""
        self.stream = 0
        """On which they were made."""
        self._reel: Reel | None = reel
        self._sent: Sent | None = None
        self._words: npt.NDArray[Any] | None = None
        self._lock = threading.Lock()

    def begin(self, wound: Tensor) -> None:
        """Copy them."""
        if not wound.is_cuda:  # (a stand-in for a GPU: nobody else waits for others on a CPU)
            self._sent = Sent(wound.clone())
        else:
            with torch.cuda.stream(_stream(self.stream, wound.device)):
                self._sent = Sent(wound)
        self._reel = None

    def hasten(self) -> None:
        """Begin, if that has not happened yet."""
        if (reel := self._reel) is not None:
            reel.send(self)

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._words is not None or (self._sent is not None and self._sent.arrived)

    def row(self, k: int, size: int) -> npt.NDArray[Any]:
        """Return one of them; may wait."""
        self.hasten()
        with self._lock:
            if self._words is None:
                assert self._sent is not None
                words: npt.NDArray[Any] = self._sent.read().numpy().reshape(-1, size)
                self._words, self._sent = words[len(words) - self.count :], None
        found: npt.NDArray[Any] = self._words[k]
        return found


class Form:
    """How many numbers a replay makes, floats before integers, and the tensors they are of."""

    def __init__(self, pack: Packed) -> None:
        self.shapes = pack.shapes
        self.floats = None if pack.floats is None else len(pack.floats)
        self.integers = None if pack.integers is None else len(pack.integers)
        self.size = 8 * ((self.floats or 0) + (self.integers or 0))
        """In bytes."""


class _Words(Arriving):
    """The numbers of one replay."""

    def __init__(self, form: Form) -> None:
        self._form, self.shapes = form, form.shapes

    @property
    def size(self) -> int:
        """How many bytes they are."""
        return self._form.size

    @abstractmethod
    def words(self) -> npt.NDArray[Any]:
        """Return all of them; may wait."""

    def arrays(self) -> list[Array | None]:
        """Return all floats and all integers, each in one vector (None: there are none); may wait."""
        words, form = self.words(), self._form
        floats = form.floats or 0
        return [
            None if form.floats is None else words[:floats].view(np.float64),
            None if form.integers is None else words[floats:],
        ]


class Here(_Words):
    """Numbers on a CPU, which wait as an array: Python's garbage collector walks over all else that waits."""

    arrived = True

    def __init__(self, form: Form, words: npt.NDArray[Any]) -> None:
        super().__init__(form)
        self._words = words

    def hasten(self) -> None:
        """Do nothing: they are here."""

    def words(self) -> npt.NDArray[Any]:
        """Return all of them."""
        return self._words


class Row(_Words):
    """Numbers that are copied with those of other replays."""

    def __init__(self, form: Form, copy: Copy) -> None:
        super().__init__(form)
        self._copy, self._k = copy, copy.count - 1

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self._copy.arrived

    def hasten(self) -> None:
        """Have them sent now, if they wait for others."""
        self._copy.hasten()

    def words(self) -> npt.NDArray[Any]:
        """Return all of them; may wait."""
        return self._copy.row(self._k, self.size // 8)


def _nobody() -> None:
    """Stand for a reference to nothing."""


def _stream(address: int, device: torch.device) -> torch.cuda.Stream:
    """Return a stream by its address; that of the default stream is zero, for which torch would make a new one."""
    return torch.cuda.ExternalStream(address, device) if address else torch.cuda.default_stream(device)
