"""Counting by bit planes: a lane packs the rows of 32 values into seven words, one for each bit, and counts bits.

Word p holds bit p of 32 rows, so the values in row k are where all seven words (or their complements, by the bits of k)
have a one. There are no atomics and no exchange between lanes while counting: it takes as long for skewed values as
for uniform ones.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from cockpit.engine.kernels.language import jit, population, tl


@jit()
def _sorted_bits(words, SHIFT: tl.constexpr, MASK: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr):
    """Split words [2 · HALF, LANES] in two halves; the first gets all bits in the mask, the second the others."""
    if HALF == 1:
        lo, hi = tl.split(tl.permute(words, (1, 0)))
    else:
        lo, hi = tl.split(tl.permute(tl.reshape(words, [2, HALF, LANES]), (1, 2, 0)))
    low = (lo & MASK) | ((hi & MASK) << SHIFT)
    high = ((lo >> SHIFT) & MASK) | (hi & ~MASK)
    return low, high


@jit()
def _planes(words, LANES: tl.constexpr):
    """Turn words [8, LANES] of four rows each into planes [LANES] of one bit of 32 rows each."""
    a, b = _sorted_bits(words, 4, 0x0F0F0F0F, 4, LANES)
    a, c = _sorted_bits(a, 2, 0x33333333, 2, LANES)
    b, d = _sorted_bits(b, 2, 0x33333333, 2, LANES)
    p0, p1 = _sorted_bits(a, 1, 0x55555555, 1, LANES)
    p2, p3 = _sorted_bits(c, 1, 0x55555555, 1, LANES)
    p4, p5 = _sorted_bits(b, 1, 0x55555555, 1, LANES)
    p6, _ = _sorted_bits(d, 1, 0x55555555, 1, LANES)
    return p0, p1, p2, p3, p4, p5, p6


@jit()
def _where(plane, k, BIT: tl.constexpr):
    """Return the plane where the bit of k is set, its complement elsewhere; the compiler knows k."""
    return plane[None, :] ^ (((k >> BIT) & 1) - 1)


@jit()
def add_words(words, counts, LANES: tl.constexpr):
    """Add rows (below 128) packed by four into words [8, LANES] to counts [8, 8, LANES].

    A count holds two of 16 bits: of row 8i + j, and of the row 64 after it.
    """
    p0, p1, p2, p3, p4, p5, p6 = _planes(words, LANES)
    k = tl.arange(0, 8)[:, None]
    low = _where(p0, k, 0) & _where(p1, k, 1) & _where(p2, k, 2)
    top = _where(p3, k, 0) & _where(p4, k, 1) & _where(p5, k, 2)
    first, second = low & ~p6[None, :], low & p6[None, :]
    counts += population(top[:, None, :] & first[None, :, :])
    return counts + (population(top[:, None, :] & second[None, :, :]) << 16)


@jit()
def _add_half(counts, out, bins, FROM: tl.constexpr) -> None:
    r = tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :] + FROM
    cell = tl.where(r == 0, bins, r)  # the rows after the bins are the cells after `under`
    cell = tl.where((r >= 1) & (r <= bins), r - 1, cell)
    tl.atomic_add(out + cell, counts.to(tl.int64), mask=(counts > 0) & (r < bins + 4), sem="relaxed")


@jit()
def add_counts(counts, out, bins) -> None:
    """Add a program's counts to the result; the row after the last holds lanes without a value."""
    _add_half(tl.sum(counts & 0xFFFF, axis=2), out, bins, 0)
    _add_half(tl.sum((counts >> 16) & 0xFFFF, axis=2), out, bins, 64)
