"""How values become bytes and text in the file, and back: numbers, steps, arrays, edges.

The formats are those that ``schema.sql`` documents; nothing here knows SQL, and nothing is pickled.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cockpit.errors import CockpitError
from cockpit.store.record import Edges

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def pack_floats(values: Sequence[float] | Floats) -> bytes:
    """Return float64 in network byte order."""
    return np.asarray(values, dtype=">f8").tobytes()


def unpack_floats(data: bytes) -> Floats:
    """Undo `pack_floats`."""
    return np.frombuffer(data, dtype=">f8").astype(np.float64)


def pack_steps(steps: Ints) -> bytes | None:
    """Return int64 in network byte order, or None where the first, the last and their number say it all."""
    if len(steps) < 3 or not np.ptp(np.diff(steps)):
        return None
    return pack_ints(steps)


def unpack_steps(data: bytes | None, first: int, last: int, count: int) -> Ints:
    """Undo `pack_steps`."""
    if data is not None:
        return unpack_ints(data)
    steps = np.arange(count, dtype=np.int64)
    steps *= (last - first) // (count - 1) if count > 1 else 1
    steps += first
    return steps


def pack_ints(values: Ints) -> bytes:
    """Return int64 in network byte order."""
    return values.astype(">i8").tobytes()


def unpack_ints(data: bytes) -> Ints:
    """Undo `pack_ints`."""
    return np.frombuffer(data, dtype=">i8").astype(np.int64)


def narrow(counts: Ints) -> npt.NDArray[Any]:
    """Return counts in the smallest type that holds them all; what are no counts, as they are."""
    if counts.dtype.kind not in "iu" or not counts.size or counts.min() < 0:
        return counts
    return counts.astype(np.min_scalar_type(int(counts.max())))


def pack_array(values: npt.NDArray[Any]) -> tuple[str, str, bytes]:
    """Return (dtype, shape, data) as the table ``array`` holds them; Python objects are refused."""
    return pack_arrays(values[None])[0]


def pack_arrays(values: npt.NDArray[Any]) -> list[tuple[str, str, bytes]]:
    """Return what `pack_array` does of each of several arrays of one shape, which lie along the first axis."""
    if values.dtype.kind not in "biufc":
        raise TypeError(f"an array of {values.dtype} cannot be stored, only numbers can")
    big = values.astype(values.dtype.newbyteorder(">"), order="C", copy=False)
    dtype, shape = big.dtype.str, _shape(values.shape[1:])
    rows = big.reshape(len(big), -1)  # (a number by itself would have the machine's own order)
    return [(dtype, shape, zlib.compress(row.tobytes(), 1)) for row in rows]


@lru_cache(maxsize=64)
def _shape(shape: tuple[int, ...]) -> str:
    return json.dumps(shape)


def unpack_array(dtype: str, shape: str, data: bytes) -> npt.NDArray[Any]:
    """Undo `pack_array`; what is longer or shorter than its shape says is refused before it fills the memory."""
    kind, lengths = np.dtype(dtype), json.loads(shape)
    if not isinstance(lengths, list) or not all(isinstance(one, int) and one >= 0 for one in lengths):
        raise CockpitError(f"the file is damaged: {shape!r} is not the shape of an array.")
    size = math.prod(lengths) * kind.itemsize
    try:
        raw = zlib.decompressobj().decompress(data, min(size + 1, sys.maxsize))
    except zlib.error as error:
        raise CockpitError(f"the file is damaged: an array cannot be decompressed: {error}.") from error
    if len(raw) != size:
        raise CockpitError(f"the file is damaged: an array of shape {shape} does not have {size} bytes.")
    values = np.frombuffer(raw, dtype=kind).reshape(lengths)
    return values.astype(kind.newbyteorder("="))


def pack_edges(edges: Edges) -> tuple[bytes, ...]:
    """Return the edges of one or two axes."""
    return tuple(pack_floats(axis) for axis in (edges if isinstance(edges, tuple) else (edges,)))


def pack_json(value: Any) -> str:
    """Return JSON for anything: what JSON cannot say is written as text, NaN and Infinity as bare words."""
    try:
        return json.dumps(value, default=_plain, skipkeys=True)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(repr(value))


def _plain(value: Any) -> Any:
    """Say a value that is not JSON in words that are."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
