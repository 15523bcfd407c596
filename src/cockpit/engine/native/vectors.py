"""Products, combinations, lengths, sums and copies of vectors on a CPU by the C kernels, or None without them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.native.library import array, kernel, library, pointer, run, serves

BLOCK = 256
"""Of ``vectors.c``."""
WORDS = (torch.float64, torch.int64, torch.float32)
"""What `words` takes as it is."""


def inner(rows: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor | None:
    """Return the products of vectors in the rows [k, D] of some tensors with others, [R, K] float64."""
    if not serves(*rows, *others):
        return None
    same = others is rows
    a, of_a = _rows(rows)
    b, of_b = (a, of_a) if same else _rows(others)
    found = torch.zeros(len(of_a), len(of_b), dtype=torch.float64)
    space = torch.empty((len(of_a) + len(of_b)) * BLOCK, dtype=torch.float64)
    counts = [ctypes.c_int64(n) for n in (len(of_a), len(of_b), rows[0].shape[1], same)]
    call = kernel("inner", rows[0].dtype)
    call(of_a, counts[0], of_b, *counts[1:], pointer(space), pointer(found))
    del a, b  # what the places are of had to live until here
    return found


def combine(weights: Tensor, rows: Sequence[Tensor]) -> Tensor | None:
    """Return combinations of the R vectors in the rows [k, D] of some tensors, with weights [K, R]."""
    if not serves(*rows):
        return None
    kept, places = _rows(rows)
    weights = weights.to(torch.float64).contiguous()
    sizes = (len(places), len(weights), rows[0].shape[1])
    found = torch.empty(sizes[1:], dtype=rows[0].dtype)
    call = kernel("combine", found.dtype)
    call(pointer(weights), places, *map(ctypes.c_int64, sizes), pointer(found))
    del kept
    return found


def lengths(vectors: Sequence[Tensor], others: Sequence[Tensor] = ()) -> list[Tensor] | None:
    """Return the squared lengths of tensors, or (with others) of their differences from them, in float64."""
    if not vectors or not serves(*vectors, *others):
        return None
    if not all(t.is_contiguous() for t in (*vectors, *others)):
        return None
    found = torch.empty(len(vectors), dtype=torch.float64)
    a, b = (array(ctypes.c_void_p, [t.data_ptr() for t in tensors]) for tensors in (vectors, others))
    sizes = array(ctypes.c_int64, [t.numel() for t in vectors])
    call = kernel("lengths", vectors[0].dtype)
    run(
        call,
        a,
        b if others else None,
        sizes,
        ctypes.c_int64(len(vectors)),
        pointer(found),
        kept=(vectors, others, found),
    )
    return list(found.unbind(0))


def takeuchi(squares: Tensor, h: Tensor, epsilon: float) -> Tensor | None:
    """Return the three numbers of `cockpit.engine.numbers.takeuchi`, [3] float64."""
    if not serves(squares, h) or not (squares.is_contiguous() and h.is_contiguous()):
        return None
    found = torch.empty(3, dtype=torch.float64)
    factors = ctypes.c_double(epsilon), ctypes.c_double(10 * epsilon)
    call = kernel("takeuchi", h.dtype)
    run(
        call,
        pointer(squares),
        pointer(h),
        ctypes.c_int64(h.numel()),
        *factors,
        pointer(found),
        kept=(squares, h, found),
    )
    return found


def negated(x: Tensor, bits: Tensor) -> Tensor | None:
    """Return numbers, contiguous, negative where one of the bits, int64, is set."""
    if not serves(x):
        return None
    found = torch.empty_like(x)
    size = ctypes.c_int64(x.numel())
    run(kernel("negated", x.dtype), pointer(x), pointer(bits), size, pointer(found), kept=(x, bits, found))
    return found


def square_sums(x: Tensor) -> Tensor | None:
    """Return the sums of squares over the first axis."""
    if not serves(x) or not x.is_contiguous():
        return None
    found = torch.empty(x.shape[1:], dtype=x.dtype)
    sizes = map(ctypes.c_int64, (len(x), found.numel()))
    call = kernel("square_sums", x.dtype)
    run(call, pointer(x), *sizes, pointer(found), kept=(x, found))
    return found


def words(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return numbers on a CPU behind each other, int64: the bits of float64 and int64, float32 as float64."""
    loaded: Any = library()[0]
    if loaded is None or not all([t.is_cpu for t in tensors]):
        return None
    kept = [
        t if t.dtype in WORDS else t.to(torch.float64 if t.is_floating_point() else torch.int64)
        for t in tensors
    ]
    kept = [t.contiguous() for t in kept]
    sizes = [t.numel() for t in kept]
    found = torch.empty(sum(sizes), dtype=torch.int64)
    places = array(ctypes.c_void_p, [t.data_ptr() for t in kept])
    lengths, narrow = (array(ctypes.c_int64, x) for x in (sizes, [t.dtype == torch.float32 for t in kept]))
    count = ctypes.c_int64(len(kept))
    run(loaded.words, places, lengths, narrow, count, pointer(found), kept=(kept, found))
    return found


def copied(to: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Copy tensors if they are contiguous and of the types of their places, on a CPU; say whether that was done."""
    if not all([t.is_cpu and t.is_contiguous() for t in (*to, *values)]):
        return False
    if [t.dtype for t in to] != [t.dtype for t in values] or (found := library()[0]) is None:
        return False
    a, b = (array(ctypes.c_void_p, [t.data_ptr() for t in tensors]) for tensors in (to, values))
    sizes = array(ctypes.c_int64, [t.nbytes for t in values])
    run(found.copies, a, b, sizes, ctypes.c_int64(len(values)), kept=(to, values), written=to)
    return True


def _rows(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
    """Return tensors whose rows are without gaps, and where each row begins."""
    kept = [t if t.stride(1) == 1 else t.contiguous() for t in tensors]
    places: list[int] = []
    for t in kept:
        begin, step = t.data_ptr(), t.stride(0) * t.element_size()
        places += [begin + k * step for k in range(t.shape[0])]
    return kept, array(ctypes.c_void_p, places)
