"""Triton, where there is one; nothing else imports it.

Kernels are written against ``jit`` and ``tl`` from here, so that their modules can be imported everywhere: without
Triton the functions stay plain Python that nobody calls.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "INTERPRETED",
    "available",
    "constexpr",
    "floor",
    "fma_down",
    "jit",
    "on_device",
    "programs",
    "read_together",
    "runs_on",
    "tl",
    "triton",
]
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Kernels run in Triton's interpreter, on any device: for tests."""
OLDEST = (3, 3)
"""Oldest Triton that takes the kernels; the compiler of 3.2 dies of the matrix product in `placed`."""
if torch.version.cuda is not None or INTERPRETED:
    try:
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        triton = tl = None
else:  # the import would cost a third of a second for nothing
    triton = tl = None
constexpr: Any = str if tl is None else tl.constexpr
"""What makes a string of a module known to its kernels."""


@cache
def available() -> bool:
    """Say whether kernels can run: Triton and a GPU that it compiles for (or its interpreter)."""
    if triton is None or tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        return False
    return INTERPRETED or (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0))


def runs_on(x: Tensor) -> bool:
    """Say whether kernels can read this tensor."""
    return available() and (x.is_cuda or INTERPRETED)


NARROW = (torch.float32, torch.bfloat16, torch.float16)
"""Types that kernels widen to float32."""


def read_together(x: Tensor, y: Tensor) -> bool:
    """Say whether kernels can read two tensors number by number."""
    known = x.dtype in NARROW and y.dtype in NARROW and x.shape == y.shape and x.numel() > 0
    return known and runs_on(x) and x.is_contiguous() and y.is_contiguous()


def jit(*unspecialised: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function on its first launch; no variants are compiled for values of the arguments named."""

    def compiled(function: Callable[..., Any]) -> Any:
        if triton is None:
            return function
        return triton.jit(do_not_specialize=list(unspecialised))(function)

    return compiled


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Return the context in which a launch goes to the device of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def programs(x: Tensor, work: int, per_processor: int) -> int:
    """Return how many programs to launch for ``work`` tiles: a few for each multiprocessor share them."""
    return max(1, min(work, per_processor * (_processors(x.device) if x.is_cuda else 2)))


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


if INTERPRETED:  # which knows no machine instructions

    @jit()
    def fma_down(x, scale, offset):
        """Return x · scale + offset, for an offset so large that rounding down leaves an integer."""
        return (tl.floor(x.to(tl.float64) * scale.to(tl.float64)) + offset.to(tl.float64)).to(tl.float32)

    @jit()
    def floor(x):
        """Return the integer not above each float64, int32; there must be one."""
        return tl.floor(x).to(tl.int32)


else:

    @jit()
    def fma_down(x, scale, offset):
        """Return x · scale + offset, rounded down once."""
        return tl.inline_asm_elementwise(
            "fma.rm.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            [x, scale, offset],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )

    @jit()
    def floor(x):
        """Return the integer not above each float64, int32; there must be one."""
        # 1.5 · 2⁵² and an integer are a float64 whose last bits are the integer: conversions are slower
        return tl.inline_asm_elementwise(
            "{ .reg .f64 sum; .reg .b32 high; add.rm.f64 sum, $1, 0d4338000000000000; mov.b64 {$0, high}, sum; }",
            "=r,d",
            [x],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
