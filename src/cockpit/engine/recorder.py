"""Recorder: device work that is recorded once and then repeated as one launch (a CUDA graph)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")


class Recorder:
    """Records work on one device; all recordings share their memory, so they must be repeated in turn.

    (`torch.cuda.graph` would empty the allocator's cache before each of them.)
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Say whether work on such a device can be recorded."""
        return device.type == "cuda"

    def prepare(self) -> None:
        """Make ready for some recordings: to free tensors of others while recording is an error."""
        gc.collect()

    def record(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Return what repeats the work, and its result, whose tensors each repetition overwrites.

        The work must not wait for the device, and is not done now.
        """
        graph = torch.cuda.CUDAGraph()
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
