r"""The gradients of a LayerNorm or RMSNorm in one look: sums over the positions of every example.

With the normalised row $\hat x_t = (x_t - \mu_t)\,\rho_t$ of position t a scale has $g_n^\gamma = \sum_t \hat x_t
\odot \delta_t$ and a shift $g_n^\beta = \sum_t \delta_t$. A program normalises a few rows, whole, and adds them up; so
inputs and output gradients are read once, and the normalised input is never written out.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, read_together, tl

TILE = 4096
"""Numbers in a tile."""
LARGEST = 8192
"""Features of a row."""
TURNS = 4
"""Tiles that a program adds up."""


@jit("positions", "eps")
def _normed(
    x,
    dy,
    partial,
    positions,
    features,
    per,
    eps,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    CENTRED: tl.constexpr,
) -> None:
    lane = tl.arange(0, FEATURES)
    known = lane < features
    base = tl.program_id(0).to(tl.int64) * positions
    scale = tl.zeros([ROWS, FEATURES], tl.float32)
    shift = tl.zeros([ROWS, FEATURES], tl.float32)
    for turn in range(0, per):
        row = (tl.program_id(1) * per + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row < positions)[:, None] & known[None, :]
        place = (base + row)[:, None] * features + lane[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            mean = tl.sum(value, axis=1) / features
            value = tl.where(inside, value - mean[:, None], 0.0)
        variance = tl.sum(value * value, axis=1) / features
        scale += d * (value / tl.sqrt(variance + eps)[:, None])
        shift += d
    at = (
        partial
        + (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 2 * features
        + lane
    )
    tl.store(at, tl.sum(scale, axis=0), mask=known)
    tl.store(at + features, tl.sum(shift, axis=0), mask=known)


def takes(x: Tensor, dy: Tensor) -> bool:
    """Say whether there is a kernel for these rows [N, T, D]."""
    return x.ndim == 3 and x.shape[2] <= LARGEST and read_together(x, dy)


def scale_and_shift(x: Tensor, dy: Tensor, eps: float, centred: bool) -> tuple[Tensor, Tensor]:
    r"""Return $g_n^\gamma$ and $g_n^\beta$, both [N, D] float32; ``centred``: rows have zero mean (LayerNorm)."""
    n, positions, features = x.shape
    wide = max(16, 1 << (features - 1).bit_length())
    tall = max(1, TILE // wide)
    share = -(-positions // (tall * TURNS))
    partial = torch.empty(n, share, 2, features, dtype=torch.float32, device=x.device)
    with on_device(x):
        _normed[(n, share)](
            x.detach(),
            dy.detach(),
            partial,
            positions,
            features,
            TURNS,
            float(eps),
            ROWS=tall,
            FEATURES=wide,
            CENTRED=centred,
            num_warps=8,
            enable_fp_fusion=True,
        )
    scale, shift = partial.sum(1).unbind(1)
    return scale, shift
