r"""Images as the multiplying kernel wants them: in half precision, a pixel's channels side by side in memory.

Half precision has as many significant bits as TensorFloat-32, and is multiplied twice as fast from half the memory.
Its range is short, so each example's numbers are multiplied by the power of two that takes the largest to about
$2^{14}$: those of down to $2^{-28}$ of it keep all bits. Padding, the phases of a stride and the taps of few channels
are written on the way.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.kernels.language import jit, on_device, programs, tl
from cockpit.engine.kernels.multiply import fitting

TILE = 2048
"""Numbers looked at together for the largest."""


@jit("total")
def _greatest(x, greatest, stride, total, TILE: tl.constexpr) -> None:
    """Raise each example's entry to its greatest finite absolute value, as bits (whose order is the same)."""
    at = x + tl.program_id(0).to(tl.int64) * stride
    j = tl.arange(0, TILE)
    high = tl.zeros([TILE], tl.float32)
    for start in range(tl.program_id(1) * TILE, total, tl.num_programs(1) * TILE):
        y = tl.abs(tl.load(at + start + j, mask=start + j < total, other=0.0).to(tl.float32))
        high = tl.maximum(high, tl.where(y < float("inf"), y, 0.0))
    tl.atomic_max(greatest + tl.program_id(0), tl.max(high, axis=0).to(tl.int32, bitcast=True), sem="relaxed")


@jit("real", "rows", "height", "width", "down", "right", "pitch", "area")
def _pack(
    x,
    greatest,
    packed,
    x_n,
    x_c,
    x_h,
    x_w,
    packed_n,
    channels,
    real,
    rows,
    height,
    width,
    down,
    right,
    pitch,
    area,
    SH: tl.constexpr,
    SW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    n = tl.program_id(2).to(tl.int64)
    phase, pixel = k // area, k % area
    tap = c % (KH * KW)
    h = pixel // pitch * SH + phase // SW + (tap // KW) * DH - down
    w = pixel % pitch * SW + phase % SW + (tap % KW) * DW - right
    inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (phase < SH * SW) & (c < real)
    at = x + n * x_n + (c // (KH * KW)).to(tl.int64) * x_c + h.to(tl.int64) * x_h + w * x_w
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    scale = (fitting(tl.load(greatest + n)) << 23).to(tl.float32, bitcast=True)
    there = (k < rows) & (c < channels)
    tl.store(
        packed + n * packed_n + k.to(tl.int64) * channels + c, (value * scale).to(tl.float16), mask=there
    )


@dataclass(frozen=True)
class Packing:
    """Where pixels go: ``area`` rows for each phase of a stride, ``pitch`` in a line; a kernel's taps beside them."""

    rows: int
    area: int
    pitch: int
    before: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)


def packed(images: Tensor, packing: Packing, greatest: Tensor) -> Tensor:
    """Return images [N, C, H, W] as [N, C · taps, rows]; ``greatest`` [N] int32 comes with zeros and is filled."""
    images = images.detach()
    if not images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last):
        images = images.contiguous()  # an example is then one piece of memory
    n, channels, height, width = images.shape
    real = channels * packing.kernel[0] * packing.kernel[1]
    aligned = -(-real // 16) * 16
    out = torch.empty(n, packing.rows, aligned, dtype=torch.float16, device=images.device)
    total = channels * height * width
    if n and total and packing.rows:
        tall, wide = (64, 64) if aligned >= 64 else (128, 32)
        share = programs(images, n * -(-total // (4 * TILE)), 8) // n
        with on_device(images):
            _greatest[(n, max(1, share))](
                images, greatest, images.stride(0), total, TILE=TILE, num_warps=4, enable_fp_fusion=True
            )
            _pack[(-(-packing.rows // tall), -(-aligned // wide), n)](
                images,
                greatest,
                out,
                *images.stride(),
                out.stride(0),
                aligned,
                real,
                packing.rows,
                height,
                width,
                *packing.before,
                packing.pitch,
                packing.area,
                SH=packing.stride[0],
                SW=packing.stride[1],
                KH=packing.kernel[0],
                KW=packing.kernel[1],
                DH=packing.dilation[0],
                DW=packing.dilation[1],
                ROWS=tall,
                CHANNELS=wide,
                num_warps=4,
                enable_fp_fusion=True,
            )
    return out.transpose(1, 2)[:, :real]
