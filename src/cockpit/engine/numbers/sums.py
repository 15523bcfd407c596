"""Sums over all elements of tensors of a parameter's size, accumulated in float64.

On a CPU each tensor is summed by rows, since converting each number takes longer than adding it. On a GPU launches
count, and there are norms of many tensors in two of them: a sum is the length of a tensor in the 1-norm, less twice
that of its negative part. (A negative infinity then makes the sum NaN.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers.precision import wide_dtype

Tensors = list[Tensor] | tuple[Tensor, ...]

ROW = 2**12
"""How many float32 numbers are summed on a CPU before the sum is widened."""
SHORT = 2**16
"""Up to so many, rows take longer than they are worth: torch adds in pairs, which loses no digit of so few."""

SHORT_ROW = 2**14
"""Up to so many squares on a CPU, calls are what takes time."""

CACHED = 2**22
"""So many numbers stay in a CPU's caches: a kernel may walk through them in pieces of rows."""


def wide_sum(x: Tensor) -> Tensor:
    """Return the sum of all elements of one tensor."""
    dtype = wide_dtype(x.device)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.sum(dtype=dtype)
    if x.numel() <= SHORT:
        return x.sum().to(dtype)
    return row_sums(x.reshape(-1)).sum(dtype=dtype)


def row_sums(x: Tensor) -> Tensor:
    """Return the sums over the rows that a vector on a CPU is cut into; their own sum is to be a wide one."""
    cut = len(x) // ROW * ROW
    rows = x[:cut].view(-1, ROW).sum(1)
    return rows if cut == len(x) else torch.cat([rows, x[cut:].sum(0, keepdim=True)])


def signed_sums(tensors: Tensors) -> Tensor:
    """Return the sums of all elements of each tensor, [P], in a few launches."""
    found = lengths([*tensors, *torch._foreach_clamp_max(tensors, 0)]).view(2, -1)
    return found[0].sub_(found[1], alpha=2)


def lengths(tensors: Tensors) -> Tensor:
    r"""Return $\sum_j |x_j|$ of each tensor, [P]."""
    return torch.stack(torch._foreach_norm(tensors, 1, dtype=wide_dtype(tensors[0].device)))


def square_sum(x: Tensor) -> Tensor:
    """Return the sum of squares over the first axis; nothing of the size of ``x`` is written if it is large."""
    if len(x) == 1:
        return x[0].square()
    if x.device.type != "cpu":
        length: Tensor = torch.linalg.vector_norm(x, dim=0)
        return length.square_()
    if x.numel() <= CACHED and (found := native.square_sums(x)) is not None:
        return found
    if not len(x) or x[0].numel() < SHORT_ROW:
        return x.square().sum(0)
    total = x[0].square()
    for row in x[1:]:
        total.addcmul_(row, row)
    return total
