"""Squared lengths of vectors as large as the parameters, and of their differences, in sums wide enough to trust.

On a GPU they take a few launches for all parameters together. On a CPU a compiled kernel looks at each number once;
without it torch sums short rows in single precision, which are widened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.numbers.precision import wide, wide_dtype
from cockpit.engine.numbers.sums import ROW
from cockpit.engine.scripts.script import noted, writing

GROUP = 2**24
"""How many numbers of several parameters are looked at together (64 MiB in float32)."""
FEW = 4
"""Fewer parameters than this are looked at one by one, if they are small."""
PIECE = 2**17
"""How many numbers are subtracted at once on a CPU, where the difference stays in the cache."""


def squared_lengths(vectors: Sequence[Tensor], origins: Sequence[Tensor] | None = None) -> list[Tensor]:
    r"""Return $\|x_p\|^2$, or $\|x_p - y_p\|^2$, in wide sums: a few launches for all parameters together."""
    if vectors and vectors[0].device.type == "cpu":
        return _on_cpu(vectors, origins)
    found: list[Tensor] = []
    for start, stop in groups([v.numel() for v in vectors]):
        group = list(vectors[start:stop])
        if origins is not None:
            group = list(torch._foreach_sub(group, list(origins[start:stop])))
        found += _squares(group)
    return found


def multiples(values: Mapping[str, Tensor], factors: Mapping[str, float]) -> dict[str, Tensor]:
    """Return each value times its factor, of many parameters in one operation."""
    if all(factors[name] == 1 for name in values):
        return dict(values)
    if len(values) < FEW:
        return {name: value * factors[name] for name, value in values.items()}
    found = torch._foreach_mul(list(values.values()), [factors[name] for name in values])
    return dict(zip(values, found, strict=True))


def _on_cpu(vectors: Sequence[Tensor], origins: Sequence[Tensor] | None) -> list[Tensor]:
    tiny = len(vectors) < FEW and all(v.numel() <= ROW for v in vectors)
    # Calls of C take longer than of torch, but not those of a script.
    if (not tiny or writing()) and (found := native.lengths(vectors, origins or ())) is not None:
        return found
    return _by_torch(vectors, origins)


@noted
def _by_torch(vectors: Sequence[Tensor], origins: Sequence[Tensor] | None) -> list[Tensor]:
    if origins is None:
        return _squares(list(vectors))
    return [_squared_distance(x, y) for x, y in zip(vectors, origins, strict=True)]


def _squared_distance(x: Tensor, y: Tensor) -> Tensor:
    if x.numel() <= PIECE:
        return _squares([x - y])[0]
    pieces = zip(x.reshape(-1).split(PIECE), y.reshape(-1).split(PIECE), strict=True)
    room = torch.empty(PIECE, dtype=torch.promote_types(x.dtype, y.dtype))  # one for all: new memory is slow
    rows = torch.cat([_row_lengths(wide(torch.sub(a, b, out=room[: len(a)]))) for a, b in pieces])
    return _squared(rows, lambda: torch.linalg.vector_norm(x - y, dtype=torch.float64))


def _squares(vectors: list[Tensor]) -> list[Tensor]:
    dtype = wide_dtype(vectors[0].device)
    if vectors[0].device.type != "cpu" or any(v.dtype == torch.float64 for v in vectors):
        norms = torch._foreach_norm(vectors, 2, dtype=dtype)
        return list(torch._foreach_mul(norms, norms))
    return [
        torch.linalg.vector_norm(vector, dtype=dtype).square()
        if vector.numel() <= ROW
        else _squared(
            _row_lengths(wide(vector)), partial(torch.linalg.vector_norm, vector, dtype=torch.float64)
        )
        for vector in vectors
    ]


def _squared(rows: Tensor, length: Callable[[], Tensor]) -> Tensor:
    """Return the square of the length that rows make up; by the slow way if it is beyond single precision."""
    rows = rows.double()
    total = rows.dot(rows)
    return total if 1e-30 < float(total) < 1e30 else length().square()


def _row_lengths(x: Tensor) -> Tensor:
    """Return the lengths of rows that a tensor is cut into, its own where they are neither very long nor short."""
    width = x.numel() // len(x)
    if not ROW // 64 <= width <= ROW:
        width = ROW
    flat = x.reshape(-1)
    cut = len(flat) // width * width
    rows: Tensor = torch.linalg.vector_norm(flat[:cut].view(-1, width), dim=1)
    if cut == len(flat):
        return rows
    return torch.cat([rows, torch.linalg.vector_norm(flat[cut:], dim=0, keepdim=True)])


def groups(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a list of vectors into runs of at most `GROUP` numbers."""
    cuts, start, size = [], 0, 0
    for k, numbers in enumerate(sizes):
        if k > start and size + numbers > GROUP:
            cuts.append((start, k))
            start, size = k, 0
        size += numbers
    return [*cuts, (start, len(sizes))] if sizes else []
