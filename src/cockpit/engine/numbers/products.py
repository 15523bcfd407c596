"""Products of matrices of our own, on a CPU by whichever of torch's libraries is the faster one there.

torch multiplies float32 matrices by MKL, which on processors of other makers than its own leaves the widest registers
(AVX-512) unused; oneDNN, by which torch convolves, uses them and takes half the time. The user's products stay as they
are. Sums are made in another order, so numbers differ within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from cockpit.engine.numbers.precision import exact_products
from cockpit.engine.scripts.script import writing

Multiply = Callable[[Tensor, Tensor], Tensor]
WORTH = 2**20
"""From how many multiplications on the call of another library pays."""
COPIED = 8
"""By how much more, where its result has to be copied: in a script."""


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` of matrices [M, K] and [K, N], or of as many of them on both sides."""
    if not (_served(a, b) and _onednn_is_faster()) or not exact_products():
        return a @ b
    with torch.no_grad():
        if a.ndim == 2:
            return _by_onednn(a, b)
        pairs = zip(a.flatten(0, -3).unbind(0), b.flatten(0, -3).unbind(0), strict=True)
        every = torch.stack([_by_onednn(x, y) for x, y in pairs])
        return every.view(*a.shape[:-1], b.shape[-1])


def multiplier(batched: bool) -> Multiply:
    """Return what multiplies matrices; ``batched``: that have a further axis they do not show."""
    return torch.matmul if batched else product


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices.

    The second one must lie without gaps: oneDNN takes a thousand times as long over any other (a layer's sequences
    with the examples on the second axis), for which it has no code but that of its reference. The first one it copies.
    """
    turned = b.T
    if not (turned.is_contiguous() or b.is_contiguous()):
        turned = turned.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, turned, None, "none", [], "")
    return found


def _served(a: Tensor, b: Tensor) -> bool:
    """Say whether these are matrices that the other library multiplies, and large enough for it."""
    if a.dtype is not torch.float32 or b.dtype is not torch.float32 or a.requires_grad or b.requires_grad:
        return False
    if a.device.type != "cpu" or b.device.type != "cpu" or a.ndim < 2 or b.ndim != a.ndim:
        return False
    if a.shape[:-2] != b.shape[:-2] or not a.numel():
        return False
    return a.shape[-2] * b.shape[-2] * b.shape[-1] >= WORTH * (COPIED if writing() else 1)


@cache
def _onednn_is_faster() -> bool:
    """Say whether MKL does not use what the processor has, and oneDNN does."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
