"""Products and combinations of vectors as long as a model has parameters: each number read once, sums in float64.

torch would write every number out in float64 first, and multiply these by matrix units' slowest kind.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, programs, runs_on, tl
from cockpit.engine.kernels.rows import power_of_two

TILE = 2048
"""Numbers in a tile of products."""
MOST = 32
"""Vectors in one tensor, at most."""
PLACES = 3
"""Tensors that are combined, at most."""
PER_PROCESSOR = 8
"""Programs that share a vector."""
LEAST = 2**16
"""From how many coordinates on a launch pays."""


@jit("size", "rows", "columns")
def _inner(a, b, sums, size, rows, columns, ROWS: tl.constexpr, LONG: tl.constexpr) -> None:
    row, column, lane = tl.arange(0, ROWS), tl.program_id(1), tl.arange(0, LONG)
    total = tl.zeros([ROWS, LONG], tl.float64)
    for start in range(tl.program_id(0) * LONG, size, tl.num_programs(0) * LONG):
        j = start + lane
        there = j < size
        y = tl.load(b + column.to(tl.int64) * size + j, mask=there, other=0.0).to(tl.float64)
        place = row.to(tl.int64)[:, None] * size + j[None, :]
        x = tl.load(a + place, mask=(row < rows)[:, None] & there[None, :], other=0.0).to(tl.float64)
        total += x * y[None, :]
    at = sums + (tl.program_id(0) * rows + row) * columns + column
    tl.store(at, tl.sum(total, axis=1), mask=row < rows)


@jit("size", "rows_a", "rows_b", "rows_c")
def _combined(a, b, c, weights, out, size, rows_a, rows_b, rows_c, TILE: tl.constexpr) -> None:
    j = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    k, there = tl.program_id(1).to(tl.int64), j < size
    long = size.to(tl.int64)
    weight = weights + k * (rows_a + rows_b + rows_c)
    total = tl.zeros([TILE], tl.float64)
    for r in range(0, rows_a):
        total += tl.load(weight + r) * tl.load(a + r * long + j, mask=there, other=0.0).to(tl.float64)
    for r in range(0, rows_b):
        w = tl.load(weight + rows_a + r)
        total += w * tl.load(b + r * long + j, mask=there, other=0.0).to(tl.float64)
    for r in range(0, rows_c):
        w = tl.load(weight + rows_a + rows_b + r)
        total += w * tl.load(c + r * long + j, mask=there, other=0.0).to(tl.float64)
    tl.store(out + k * size + j, total.to(tl.float32), mask=there)


def takes(*tensors: Tensor) -> bool:
    """Say whether there are kernels for the vectors in the rows of these tensors."""
    return all(
        x.dtype is torch.float32
        and x.is_contiguous()
        and 0 < x.shape[0] <= MOST
        and LEAST <= x.shape[1] < 2**31 - 2**20
        and runs_on(x)
        for x in tensors
    )


def inner(rows: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the products of vectors in the rows of some tensors [k, D] with others, [R, K] float64."""
    return torch.cat([torch.cat([_products(a, b) for b in others], 1) for a in rows])


def _products(a: Tensor, b: Tensor) -> Tensor:
    (rows, size), columns = a.shape, b.shape[0]
    tall = power_of_two(rows, 1)
    long = max(64, TILE // tall)
    held = programs(a, -(-size // long), PER_PROCESSOR)
    sums = torch.empty(held, rows, columns, dtype=torch.float64, device=a.device)
    with on_device(a):
        _inner[(held, columns)](
            a, b, sums, size, rows, columns, ROWS=tall, LONG=long, num_warps=4, enable_fp_fusion=True
        )
    return sums.sum(0)


def combine(weights: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """Return combinations [K, D] of the vectors in the rows of some tensors, with weights [K, R]."""
    if len(rows) > PLACES:
        rows = [torch.cat(list(rows))]
    first, size = rows[0], rows[0].shape[1]
    weights = weights.to(device=first.device, dtype=torch.float64).contiguous()
    out = torch.empty(len(weights), size, dtype=torch.float32, device=first.device)
    places = [*rows, *[first] * (PLACES - len(rows))]
    counts = [*(len(x) for x in rows), *[0] * (PLACES - len(rows))]
    with on_device(first):
        _combined[(-(-size // TILE), len(weights))](
            *places, weights, out, size, *counts, TILE=TILE, num_warps=4, enable_fp_fusion=True
        )
    return out
