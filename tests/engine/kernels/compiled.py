"""Compiles kernels for a GPU that is not there; test_compiled.py runs it in a process of its own.

Triton is imported where torch is made for a GPU only, so ``torch.version.cuda`` must be set before this is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.kernels import Products, products
from cockpit.engine.kernels.language import triton
from cockpit.engine.numbers.binning import Grid

DOWN, WIDE, EDGES, MANY = (
    Grid(100, -2.0, 2.0),
    Grid(200, -1.0, 3.3),
    Grid(200, 0.1, 0.1 + 1e-6),
    Grid(1000, -2.0, 2.0),
)
BY_PLACE, BY_PLACE_MORE = Grid(40, -1.0, 1.0, 50), Grid(100, -2.0, 2.0, 64)
N = 9
"""Examples."""


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


def places(m: int) -> Tensor:
    return zeros(m, dtype=torch.int32)


def outer(grid: Grid, height: int, width: int, dtype: torch.dtype = torch.float32) -> object:
    place = places(height * width) if grid.columns > 1 else None
    return kernels.count_outer(zeros(N, width, dtype=dtype), zeros(N, height, dtype=dtype), grid, place)


def multiplied(outputs: int, inputs: int, uses: int, dtype: torch.dtype, joint: bool = False) -> object:
    """Multiply as for a convolution; half precision is packed: a pixel's channels side by side."""
    b, a = zeros(N, uses, outputs, dtype=dtype), zeros(N, uses + 16, inputs, dtype=dtype)
    half = dtype is torch.float16
    b, a = (x.transpose(1, 2) if half else x.transpose(1, 2).contiguous() for x in (b, a))
    greatest = zeros(2, N, dtype=torch.int32) if half else None
    given = Products(b, a, zeros(1, dtype=torch.int32), half, 9.0, greatest)
    if joint:
        return kernels.product_statistics(given, grid=BY_PLACE, place=places(outputs * inputs))
    return kernels.product_statistics(given, 2 * [zeros(outputs * inputs)], DOWN)


CALLS: dict[str, Callable[[], object]] = {
    "block": lambda: kernels.block_statistics(zeros(N, 4096), 3 * [zeros(4096)], DOWN),
    "block of odd rows": lambda: kernels.block_statistics(zeros(N, 4095), [zeros(4095)], WIDE),
    "block of four rows": lambda: kernels.block_statistics(zeros(4, 4096), [zeros(4096)], EDGES),
    "float32": lambda: kernels.count(zeros(1, 4096), DOWN),
    "bfloat16": lambda: kernels.count(zeros(1, 4096, dtype=torch.bfloat16), DOWN),
    "float64": lambda: kernels.count(zeros(1, 4096, dtype=torch.float64), WIDE),
    "segments": lambda: kernels.segment_statistics(zeros(N, 700), (300, 400), 3 * [zeros(700)], DOWN),
    "outer": lambda: outer(DOWN, 300, 785),
    "outer, low": lambda: outer(DOWN, 3, 10, torch.bfloat16),
    "outer, narrow": lambda: outer(EDGES, 64, 3),
    "outer of float64": lambda: outer(DOWN, 10, 64, torch.float64),
    "by place": lambda: kernels.count(zeros(N, 4096), BY_PLACE, places(4096)),
    "by place, odd": lambda: kernels.count(zeros(N, 4095), BY_PLACE_MORE, places(4095)),
    "outer by place": lambda: outer(BY_PLACE, 30, 78, torch.bfloat16),
    "multiplied": lambda: multiplied(64, 64, 3136, torch.float16),
    "multiplied, at once": lambda: multiplied(512, 96, 64, torch.float16),
    "multiplied, wide": lambda: multiplied(128, 256, 832, torch.float16),
    "multiplied, low": lambda: multiplied(20, 40, 256, torch.float16),
    "multiplied, single": lambda: multiplied(64, 20, 100, torch.float32),
    "multiplied, tall": lambda: multiplied(128, 96, 300, torch.float32),
    "multiplied by place": lambda: multiplied(64, 64, 3136, torch.float16, joint=True),
    "multiplied by place, at once": lambda: multiplied(512, 96, 64, torch.float16, joint=True),
    "multiplied by place, tall": lambda: multiplied(128, 96, 300, torch.float32, joint=True),
    "many bins": lambda: kernels.count(zeros(N, 4096), MANY),
    "many bins of a block": lambda: kernels.block_statistics(zeros(N, 4096), [zeros(4096)], MANY),
}


def main(folder: str, *names: str) -> None:
    """Write what the compiler made of calls: of those named, or of all."""
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: target,
        )
    )
    made: list[tuple[Any, dict[str, Any]]] = []

    def compiled(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **named: made.append((kernel.warmup(*args, grid=grid, **named), named))

    triton.runtime.jit.KernelInterface.__getitem__ = compiled
    products._check = lambda *given: None  # nothing is counted
    found = {}
    for name in names or CALLS:
        made.clear()
        CALLS[name]()
        kernel, named = made[0]  # (another one may add up what the first has left)
        found[name] = {form: kernel.asm[form] for form in ("ttgir", "ptx", "sass")} | {
            "shared": kernel.metadata.shared,
            "lanes": 32 * kernel.metadata.num_warps,
            "constants": {key: value for key, value in named.items() if key.isupper()},
        }
    Path(folder, "compiled.json").write_text(json.dumps(found))
