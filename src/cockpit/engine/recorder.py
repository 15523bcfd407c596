"""Recorder: device work that is recorded once and then repeated as one launch (a CUDA graph)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")


class Recorder:
    """Records work on one device; all recordings share their memory, so they must be repeated in turn.

    (`torch.cuda.graph` would empty the allocator's cache before each of them.)
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream or torch.cuda.Stream(device)

    def another(self) -> Recorder:
        """Return a recorder with memory of its own: whatever is repeated leaves its results alone."""
        return Recorder(self.device, self._stream)  # (each stream has workspaces of its own)

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Say whether work on such a device can be recorded."""
        return device.type == "cuda"

    def prepare(self) -> None:
        """Make ready for some recordings: to free tensors of others while recording is an error."""
        gc.collect()

    def record(
        self, work: Callable[[], T], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], T]:
        """Return what repeats the work, and its result, whose tensors each repetition overwrites.

        The work must not wait for the device, and is not done now. Its random numbers are drawn from ``generators``,
        by each repetition from the state in which they are then.
        """
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
