"""What a few products tell of a Hessian, by C (`cockpit.engine.curvature.seen`), or None where there is no library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.native.library import array, library, pointer
from cockpit.engine.numbers.precision import NONFINITE
from cockpit.errors import Gap


def look(values: Tensor, noise: float, products: int, constants: Sequence[float]) -> Seen | None:
    """Begin a step with the carried values [k], for at most so many products."""
    if library()[0] is None or len(values) + products > _sizes()[1]:
        return None
    return Seen(values, noise, constants)


class Seen:
    """`cockpit.engine.curvature.seen.Seen` by C."""

    def __init__(self, values: Tensor, noise: float, constants: Sequence[float]) -> None:
        self.products, self._rows = 0, len(values)
        found: Any = library()[0]
        self._library = found
        self._here = ctypes.create_string_buffer(_sizes()[0])
        given = array(ctypes.c_double, constants)
        values = values.contiguous()
        sizes = ctypes.c_int64(len(values)), ctypes.c_double(noise)
        self._library.seen_begin(self._here, pointer(values), *sizes, given)

    def add(self, fresh: Tensor, more: bool) -> Tensor | None:
        """Enter a product, the last row; return the weights [1, R] of the direction to multiply next."""
        fresh = fresh.to(device="cpu", dtype=torch.float64).contiguous()
        sizes = [ctypes.c_int64(n) for n in (*fresh.shape, more)]
        weights = torch.empty(1, fresh.shape[0], dtype=torch.float64)
        found = self._library.seen_add(self._here, pointer(fresh), *sizes, pointer(weights))
        if found < 0:
            raise Gap(NONFINITE)
        self.products, self._rows = self.products + 1, fresh.shape[0]
        return weights if found else None

    def value(self) -> tuple[float, float, bool]:
        """Return the value, its residual, and whether it is to be trusted."""
        found = array(ctypes.c_double, (0.0, 0.0))
        trusted = self._library.seen_value(self._here, found)
        return found[0], found[1], bool(trusted)

    def averaged(self, most: int) -> tuple[Tensor, Tensor]:
        """Return the topmost eigenvalues of the mean Hessian, ascending, and weights [K, R] of its eigenvectors."""
        values = torch.empty(most, dtype=torch.float64)
        weights = torch.empty(most, self._rows, dtype=torch.float64)
        kept = self._library.seen_averaged(
            self._here, ctypes.c_int64(most), pointer(values), pointer(weights)
        )
        return values[:kept], weights[:kept]


@cache
def _sizes() -> tuple[int, int]:
    """Return how many bytes C keeps for a step, and how many rows it takes at most."""
    found: Any = library()[0]
    return found.seen_bytes(), found.seen_most()
