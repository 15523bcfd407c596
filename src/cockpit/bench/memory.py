"""The peak of tensor memory over some steps, exact: every allocation of torch's allocators, and nothing else.

On a GPU the caching allocator counts it. On a CPU the profiler reports every allocation and release of a
tensor, and the largest running sum is the peak; unlike the resident size of the process it knows neither
what the system's allocator keeps nor what ran before, so no fresh process is needed. Not counted: scratch
space inside libraries such as oneDNN, and NumPy arrays. This file imports nothing of the package: see
clock.py.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

MARK = "cockpit.bench: steps that count"


def peak_bytes(
    build: Callable[[], Callable[[], None]], device: str = "cpu", warm: int = 2, steps: int = 2
) -> int:
    """Return the most bytes of tensors alive at once during a step.

    Args:
        build: makes everything (model, data, whatever watches it) and returns what runs one step; what it makes counts.
        device: where the tensors are.
        warm: steps before those that count, since first steps allocate what later ones keep.
        steps: steps that count.
    """
    gc.collect()
    if device.startswith("cuda"):
        return _on_gpu(build, warm, steps)
    with _large_blocks_apart(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watching:
        step = build()
        for _ in range(warm):
            step()
        with record_function(MARK):
            for _ in range(steps):
                step()
    return _largest_sum(watching)


@contextmanager
def _large_blocks_apart() -> Iterator[None]:
    """Give tensors memory of their own, not between what the profiler notes.

    There a freed tensor's place is not found again, and a process of 1 GB grows to 8.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    trim, threshold = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    if mallopt is not None:
        mallopt(threshold, 2**16)
    try:
        yield
    finally:
        if mallopt is not None:  # what they grow to by themselves in a process that trains
            mallopt(threshold, 2**25)
            mallopt(trim, 2**26)


def _on_gpu(build: Callable[[], Callable[[], None]], warm: int, steps: int) -> int:
    torch.cuda.synchronize()
    # cuBLAS keeps room for every stream that ever multiplied; in a process of its own each would have made it itself.
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step = build()
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _largest_sum(watching: profile) -> int:
    """Sum allocations and releases in the order of time; the peak is looked for from the mark on."""
    recorded: Any = watching.profiler
    events = recorded.kineto_results.events()
    begin = min(event.start_ns() for event in events if event.name() == MARK)
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    alive: list[int] = list(accumulate((size for _, size in changes), initial=0))
    first = sum(when < begin for when, _ in changes)
    return max(alive[first:])
