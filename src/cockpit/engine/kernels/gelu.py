r"""GELU, twice, in one look: $v\,g'(x)$ and $v\,\delta\,g''(x)$."""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, read_together, tl

TILE = 1024
"""Numbers of a program."""


@jit("size")
def _twice(v, delta, x, by_delta, by_x, size, TANH: tl.constexpr, TILE: tl.constexpr) -> None:
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = i < size
    u = tl.load(v + i, mask=there, other=0.0).to(tl.float32)
    d = tl.load(delta + i, mask=there, other=0.0).to(tl.float32)
    y = tl.load(x + i, mask=there, other=0.0).to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (y + 0.044715 * y * y * y)
        small = tl.exp(-2 * tl.abs(inner))
        t = tl.where(inner < 0, small - 1, 1 - small) / (1 + small)
        slope = 0.7978845608028654 * (1 + 0.134145 * y * y)
        left = 4 * small / ((1 + small) * (1 + small))  # 1 − t², which t in single precision does not know
        first = tl.where(inner < 0, small, 1.0) / (1 + small) + 0.5 * y * left * slope
        second = left * (slope + y * (0.10703222440890038 * y - t * slope * slope))
    else:
        density = 0.3989422804014327 * tl.exp(-0.5 * y * y)
        first = 0.5 * (1 + tl.erf(0.7071067811865476 * y)) + y * density
        second = density * (2 - y * y)
    tl.store(by_delta + i, (u * first).to(by_delta.dtype.element_ty), mask=there)
    tl.store(by_x + i, (u * d * second).to(by_x.dtype.element_ty), mask=there)


def takes(delta: Tensor, x: Tensor) -> bool:
    """Say whether there is a kernel for these."""
    return read_together(x, delta)


def gelu_twice(v: Tensor, delta: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return the derivatives by delta and input of what the gradient makes of a vector; ``tanh``: approximated so."""
    v, delta, x = v.detach().contiguous(), delta.detach(), x.detach()
    by_delta, by_x = torch.empty_like(delta), torch.empty_like(x)
    with on_device(x):
        _twice[(-(-x.numel() // TILE),)](
            *(v, delta, x, by_delta, by_x, x.numel()),
            TANH=tanh,
            TILE=TILE,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return by_delta, by_x
