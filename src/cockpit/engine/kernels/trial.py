"""Trial: kernels that a compiler or a device does not take are asked once and then left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")

refused: dict[str, str] = {}
"""Kernels that do not run here, and why."""


def tried(kernel: str, look: Callable[[], T]) -> T | None:
    """Return what a kernel says; None where it does not run, so that the simple way is taken."""
    if kernel in refused:
        return None
    try:
        return look()
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise  # it is the recording that failed
        refused[kernel] = f"{type(failure).__name__}: {failure}"
        return None
