"""The compiled kernels, loaded when first asked for, and how they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.native.build import UnavailableError, load
from cockpit.engine.scripts.script import note

KINDS = {torch.float32: "float", torch.float64: "double"}
"""The types that the kernels know."""


@cache
def library() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or None, with where it is, or why there is none."""
    try:
        found = load()
    except (UnavailableError, OSError, ValueError) as error:  # no folder at all, a $CC that is not a command
        return None, str(error)
    return found, str(found._name)


def status() -> str:
    """Return how this machine's CPU counts and multiplies, in words."""
    found, reason = library()
    return f"compiled ({reason})" if found else f"by torch ({reason})"


def serves(*tensors: Tensor) -> bool:
    """Say whether the kernels take these tensors: on the CPU, of one type that they know."""
    dtype = tensors[0].dtype
    if dtype not in KINDS or not all([t.is_cpu and t.dtype is dtype for t in tensors]):
        return False
    return library()[0] is not None


def is_there(t: Tensor) -> bool:
    """Say whether a tensor has memory: several that are treated as one (`vmap`) have none that could be read."""
    try:
        t.data_ptr()
    except RuntimeError:
        return False
    return True


@cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """Return a kernel for numbers of a type."""
    function: Callable[..., int] = getattr(library()[0], f"{name}_{KINDS[dtype]}")
    return function


def run(call: Callable[..., int], *args: Any, kept: object, written: Sequence[Tensor] = ()) -> int:
    """Call a kernel that writes all of its results.

    ``kept`` are the tensors it reads and writes, ``written`` those it writes into though they had numbers before.
    """
    note(call, *args, kept=kept, written=written)
    return call(*args)


def pointer(t: Tensor | None) -> ctypes.c_void_p:
    """Return where a tensor's numbers begin."""
    return ctypes.c_void_p(None if t is None else t.data_ptr())


def array(kind: Any, values: Sequence[float]) -> Any:
    """Return numbers side by side."""
    return _type_of(kind, len(values))(*values)


@lru_cache(maxsize=256)
def _type_of(kind: Any, length: int) -> Any:
    """Return the type of an array, which takes longer to make than to use."""
    return kind * length
