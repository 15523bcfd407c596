"""Products and combinations of vectors as long as a model has parameters, in sums wide enough to decide by.

Vectors are rows of one tensor or of several, so that nobody has to bring them together first. Compiled kernels
look at each number once and sum in float64; without them torch does the same in several looks, or, where widening
every number would take several times as long as the products themselves, in short float32 sums that are widened.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.kernels import vectors as kernels
from cockpit.engine.kernels.trial import tried
from cockpit.engine.numbers.precision import wide_dtype

SHORT = 2**12
"""How many numbers are multiplied and summed before the sum is widened; all such sums are one batched product."""
LONG = 2**16
"""From how many coordinates on it pays not to widen every number."""
COLUMNS = 2**20
"""How many coordinates are widened at once (a basis of 24 takes 192 MiB in float64)."""
ROOM = 2**24
"""How many numbers are kept wide at most (128 MiB), where rows come one after the other."""
LENGTHS = (1e-15, 1e15)
"""Of vectors whose squares are within single precision."""
WIDE, NARROW = 1e-11, 1e-6
"""Of products of unit vectors, what may be rounding, with sums in double and in single precision."""


def inner(rows: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the products of vectors in the rows of some tensors [k, D] with others, [R, K], on their device."""
    if (found := native.inner(rows, others)) is not None:
        return found
    if (
        kernels.takes(*rows, *others)
        and (found := tried("inner", lambda: kernels.inner(rows, others))) is not None
    ):
        return found
    a = _together(rows)
    b = a if others is rows else _together(others)
    wide = wide_dtype(a.device)
    if _narrow(a):
        lengths = torch.linalg.vector_norm(b, dim=1).tolist()
        if all(LENGTHS[0] < length < LENGTHS[1] for length in lengths):
            return _inner(a, b, wide)
    sums = []
    for x, y in zip(a.split(COLUMNS, dim=1), b.split(COLUMNS, dim=1), strict=True):
        widened = x.to(wide)
        sums.append(_inner(widened, widened if b is a else y.to(wide), wide))
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def combine(weights: Tensor, rows: Sequence[Tensor]) -> Tensor:
    """Return combinations [K, D] of the vectors in the rows of some tensors, with weights [K, R].

    Wide like `inner`: float32 matrix products may be rounded to 11 bits (TF32), which ruins orthogonality.
    """
    if (found := native.combine(weights, rows)) is not None:
        return found
    if (
        kernels.takes(*rows)
        and (found := tried("combine", lambda: kernels.combine(weights, rows))) is not None
    ):
        return found
    together = _together(rows)
    if _narrow(together):
        return weights.to(together) @ together
    weights = weights.to(device=together.device, dtype=wide_dtype(together.device))
    pieces = [
        (weights @ piece.to(weights.dtype)).to(together.dtype) for piece in together.split(COLUMNS, dim=1)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


class Rows:
    """Vectors that come one after the other and are multiplied and combined with all before.

    On a GPU, where launches count, each is widened once, when it comes, into a room cut into short pieces.

    Args:
        first: those that are there already, [k, D].
        more: how many will come at most.
    """

    def __init__(self, first: Tensor, more: int) -> None:
        self._rows, self._room = [first], None
        self.count, self._size = first.shape
        numbers = (self.count + more) * self._size
        if (
            numbers <= ROOM and not native.serves(first) and not _narrow(first)
        ):  # launches count more than looks
            shape = self.count + more, -(-self._size // SHORT), min(SHORT, max(1, self._size))
            self._room = torch.zeros(shape, dtype=wide_dtype(first.device), device=first.device)
            self._flat = self._room.flatten(1)[:, : self._size]
            self._flat[: self.count] = first

    def append(self, row: Tensor) -> None:
        """Take one more, [D]."""
        if self._room is None:
            self._rows.append(row[None])
        else:
            self._flat[self.count] = row
        self.count += 1

    def inner(self, fresh: int) -> Tensor:
        """Return the products of all with the last ``fresh`` ones, [R, fresh]."""
        if self._room is None:
            return inner(self._rows, self._rows if fresh == self.count else self._rows[-fresh:])
        pieces = self._room[: self.count].transpose(0, 1)  # [pieces, R, numbers]
        return torch.bmm(pieces, pieces[:, -fresh:].mT).sum(0)

    def combine(self, weights: Tensor) -> Tensor:
        """Return combinations [K, D] of all, with weights [K, R]."""
        if self._room is None:
            return combine(weights, self._rows)
        room = self._flat[: self.count]
        return (weights.to(room) @ room).to(self._rows[0].dtype)


def rounding(rows: Tensor) -> float:
    """Return what `inner` may be wrong by, of unit vectors like these."""
    return NARROW if _narrow(rows) and not native.serves(rows) else WIDE


def _narrow(rows: Tensor) -> bool:
    """Say whether short float32 sums can be trusted: on a CPU, where nobody asked for less precise products."""
    long = rows.shape[1] > LONG
    return long and rows.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"


def _together(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def _inner(rows: Tensor, others: Tensor, wide: torch.dtype) -> Tensor:
    whole = rows.shape[1] // SHORT * SHORT
    rest = (rows[:, whole:] @ others[:, whole:].T).to(wide)
    if not whole:
        return rest
    a, b = (x[:, :whole].unflatten(1, (-1, SHORT)).transpose(0, 1) for x in (rows, others))
    return torch.bmm(a, b.mT).sum(0, dtype=wide) + rest
