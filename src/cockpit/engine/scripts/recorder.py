"""Recorder: work that is recorded once and then repeated: as one launch (a CUDA graph), on a CPU as a script."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor

from cockpit.engine.scripts.script import Feed, Script

T = TypeVar("T")

ON_CPU = 4 * 2**20
"""How many bytes a recording on a CPU may read: with more, arithmetic takes longer than the Python it spares."""
KEPT = 32 * 2**20
"""How many bytes one may keep for what it writes on its way."""


class Recorder(ABC):
    """Records work on one device; all recordings share their memory, so they must be repeated in turn."""

    device: torch.device

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Say whether work on such a device can be recorded."""
        return device.type in ("cuda", "cpu")

    @staticmethod
    def of(device: torch.device) -> Recorder:
        """Return what records on a device."""
        return GraphRecorder(device) if device.type == "cuda" else ScriptRecorder(device)

    @abstractmethod
    def another(self) -> Recorder:
        """Return a recorder with memory of its own: whatever is repeated leaves its results alone."""

    @abstractmethod
    def prepare(self) -> None:
        """Make ready for some recordings."""

    @abstractmethod
    def record(
        self, work: Callable[[], T], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], T]:
        """Return what repeats the work, and its result, whose tensors each repetition overwrites.

        The work must not wait for the device, and counts as not done now. Its random numbers are drawn from
        ``generators``, by each repetition from the state in which they are then.
        """


def feed_of(repeat: Callable[[], None], place: Tensor) -> Feed | None:
    """Return what lets a recording read a tensor elsewhere; None: what it reads has to be copied to its place."""
    script = getattr(repeat, "__self__", None)
    return script.feed(place) if isinstance(script, Script) else None


def reads(repeat: Callable[[], None], place: Tensor) -> bool:
    """Say whether a recording may read a tensor."""
    script = getattr(repeat, "__self__", None)
    return not isinstance(script, Script) or script.reads(place)


class ScriptRecorder(Recorder):
    """Records on a CPU; whoever asks a tensor for its value meanwhile fails."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def another(self) -> ScriptRecorder:
        """Return itself: scripts share nothing."""
        return self

    def prepare(self) -> None:
        """Do nothing."""

    def record(
        self, work: Callable[[], T], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], T]:
        """Write a script."""
        with torch.no_grad(), Script() as script:
            found = work()
        script.settle()
        if script.size > KEPT:
            raise RuntimeError(f"{script.size} bytes would be kept, more than {KEPT}")
        return script.repeat, found


class GraphRecorder(Recorder):
    """Records on a GPU.

    (`torch.cuda.graph` would empty the allocator's cache before each recording.)
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream or torch.cuda.Stream(device)

    def another(self) -> GraphRecorder:
        """Return a recorder with memory of its own."""
        return GraphRecorder(self.device, self._stream)  # (each stream has workspaces of its own)

    def prepare(self) -> None:
        """Collect garbage: to free tensors of other recordings while recording is an error."""
        gc.collect()

    def record(
        self, work: Callable[[], T], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], T]:
        """Capture a graph."""
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        collects = gc.isenabled()
        gc.disable()
        try:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    found = work()
                except BaseException:
                    with suppress(Exception):  # what was begun has to be ended, whatever it says
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        return graph.replay, found
