"""Times some training steps: wall time, and the processor time of this process.

On a busy machine wall time tells what others do; processor time (all threads of this process, so use one)
tells what the steps do. On a GPU only synchronised wall time has a meaning. This file imports nothing of
the package: the benchmarks load it by its path in environments where ``cockpit`` is another package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Times:
    """Seconds that a number of steps took together; ``process`` is None where it means nothing (on a GPU)."""

    steps: int
    wall: float
    process: float | None

    @property
    def seconds(self) -> float:
        """The clock that counts: processor time where it means something, else wall time."""
        return self.wall if self.process is None else self.process


def timed(
    step: Callable[[], None], steps: int, device: str = "cpu", settle: Callable[[], None] | None = None
) -> Times:
    """Run steps and return what they took; ``settle`` ends work they left to other threads, inside the clock."""
    synchronise(device)
    wall, process = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    if settle is not None:
        settle()
    synchronise(device)
    process = time.process_time() - process
    wall = time.perf_counter() - wall
    return Times(steps, wall, None if device.startswith("cuda") else process)


def synchronise(device: str) -> None:
    """Wait for the device: kernels run behind Python's back."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
