r"""A convolution's individual gradients as products, without patches: a patch's element is the image, shifted.

A stride s cuts the image into s phases, in each of which neighbours are s pixels apart: tap t looks at phase
$dt \bmod s$, shifted by $\lfloor dt/s \rfloor$. Rows of output gradients are filled with zeros to the length of a
phase's rows, so that in the flattened image a shift is one number. (An infinite pixel meets those zeros: then all
elements of its example's gradient may be NaN.) Where rounding is allowed and the work is worth it, both are packed into
half precision; of images of few channels the taps are then written beside the channels, which fill a tile that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit.engine.kernels.packing import Packing, packed
from cockpit.engine.kernels.products import Products, shifts_on

WORTH = 128
"""Multiplications for each number, from which packing it takes less time than it saves."""
FOLDED = 16
"""Fewer channels than this get their taps beside them."""
USES = 64
"""Packed pixels are filled with zeros to a multiple of this."""


def padded(images: Tensor, pads: Sequence[int], mode: str = "constant") -> Tensor:
    """Pad, but do not copy where there is nothing to pad."""
    return F.pad(images, pads, mode) if any(pads) else images


@dataclass(frozen=True)
class Window:
    """A convolution in two dimensions: what its kernel looks at."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def folds(self, inputs: int) -> bool:
        """Say whether taps are written beside the channels when images are packed."""
        return inputs < FOLDED and prod(self.kernel) > 1

    def worth_packing(self, inputs: int, outputs: int) -> bool:
        """Say whether images that may be rounded should be packed."""
        multiplications = outputs * inputs * prod(self.kernel)
        return self.folds(inputs) or multiplications >= WORTH * (outputs + inputs)

    def numbers(self, images: Tensor, placed: Tensor, packed: bool) -> int:
        """Return about how many numbers an example takes."""
        seen = prod(images.shape[1:])
        if packed and self.folds(images.shape[1]):
            seen = images.shape[1] * prod(self.kernel) * prod(placed.shape[2:])
        return seen + prod(placed.shape[1:])

    def _shifts(self, height: int, width: int) -> list[int]:
        """Return the place of each tap, for phases of this size."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        return [
            (y % sh * sw + x % sw) * height * width + y // sh * width + x // sw
            for y in range(0, dh * kh, dh)
            for x in range(0, dw * kw, dw)
        ]

    def products(self, images: Tensor, placed: Tensor, rough: bool, factor: float) -> Products:
        """Lay out padded images [n, C, H, W] and output gradients [n, O, h, w] in float32."""
        (sh, sw), (n, outputs, *space) = self.stride, placed.shape
        height, width = (-(-size // s) for size, s in zip(images.shape[2:], (sh, sw), strict=True))
        if self.kernel == (1, 1):  # looks at one phase only
            images = images[:, :, ::sh, ::sw]
        elif (sh, sw) != (1, 1):
            images = padded(images, (0, width * sw - images.shape[3], 0, height * sh - images.shape[2]))
            images = images.unflatten(3, (width, sw)).unflatten(2, (height, sh)).permute(0, 1, 3, 5, 2, 4)
        a = images.reshape(n, images.shape[1], -1)
        b = padded(placed.float(), (0, width - space[1]))
        b = b.reshape(n, outputs, space[0] * width)[:, :, : (space[0] - 1) * width + space[1]]
        return Products(b, a, shifts_on(a.device, *self._shifts(height, width)), rough, factor)

    def packed_products(self, images: Tensor, pads: Sequence[int], placed: Tensor, factor: float) -> Products:
        """Lay out images, to be padded with zeros by ``pads`` as `F.pad` knows them, and output gradients, packed."""
        (n, inputs, *size), space = images.shape, placed.shape[2:]
        greatest = torch.zeros(2, n, dtype=torch.int32, device=images.device)
        before = (pads[2], pads[0])
        if self.folds(inputs):
            rows, width = _filled(space[0] * space[1]), space[1]
            shifts = [0]
            packing = Packing(rows, rows, width, before, self.stride, self.kernel, self.dilation)
        else:
            height = -(-(size[0] + pads[2] + pads[3]) // self.stride[0])
            width = -(-(size[1] + pads[0] + pads[1]) // self.stride[1])
            rows = _filled((space[0] - 1) * width + space[1])
            shifts = self._shifts(height, width)
            packing = Packing(max(shifts) + rows, height * width, width, before, self.stride)
        b = packed(placed, Packing(rows, rows, width), greatest[0])
        a = packed(images, packing, greatest[1])
        return Products(b, a, shifts_on(a.device, *shifts), True, factor, greatest)


def _filled(uses: int) -> int:
    return -(-uses // USES) * USES
