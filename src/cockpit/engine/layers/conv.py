r"""Convolutions and transposed convolutions in one, two and three dimensions.

A convolution is a linear layer over patches: with the patch $p_{it}$ under output pixel t of example i,
$g_i = \sum_t \delta_{it} p_{it}^\top$ in each group. A transposed convolution is the same with input and
output gradient changing places: patches of $\delta$, at the pixels of x. Patches are as many times larger
than the image as the kernel has taps, so they are formed for a few examples at a time; and what is linear
in the gradient needs none: $\langle g_i, V\rangle = \langle \mathrm{conv}(x_i; V), \delta_i\rangle$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import grad as G

from cockpit.engine import native
from cockpit.engine.gradients import individual
from cockpit.engine.gradients.parts import Dense, Lazy, Outer, Part
from cockpit.engine.kernels import Products, runs_on
from cockpit.engine.kernels.images import Window, padded
from cockpit.engine.kernels.products import rounds
from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.native import Taps
from cockpit.engine.numbers.precision import wide

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
WEIGHT: dict[int, Callable[..., Tensor]] = {1: G.conv1d_weight, 2: G.conv2d_weight, 3: G.conv3d_weight}

PATCHES = 2**21
"""How many numbers of patches and of what stands at their places are formed at once on a CPU.

So they stay in its caches, and in memory that the process has had before: larger pieces are given back to the system
and paged in anew each time, which takes as long as multiplying them.
"""


def _features(module: nn.Module, out: Tensor) -> int:
    assert isinstance(module, Convolution | Transposed)
    return 1 + len(module.kernel_size)


@formula(nn.Conv1d, nn.Conv2d, nn.Conv3d, features=_features)
def convolution(call: Call) -> dict[str, Part]:
    """Patches of the input, padded as the layer pads it; output gradients at their places."""
    m = call.module
    assert isinstance(m, Convolution)
    x, dy = (call.split(t, _features(m, t)) for t in (call.input, call.grad))
    mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
    return {"weight": _convolved(m, x, dy, _padding(m), mode), **_bias(m, dy)}


@formula(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, features=_features)
def transposed_convolution(call: Call) -> dict[str, Part]:
    """Patches of the output gradient; inputs at their places."""
    m = call.module
    assert isinstance(m, Transposed)
    x, dy = (call.split(t, _features(m, t)) for t in (call.input, call.grad))
    pads: list[int] = []
    for k, before in enumerate(m.padding):
        assert isinstance(before, int)
        reached = (x.shape[3 + k] - 1) * m.stride[k] + m.dilation[k] * (m.kernel_size[k] - 1) + 1
        # output_padding adds pixels that no input reaches: a negative pad cuts them off
        pads = [before, reached - before - dy.shape[3 + k], *pads]
    return {"weight": _convolved(m, dy, x, pads), **_bias(m, dy)}


def _padding(m: Convolution) -> list[int]:
    """Return (before, after) for each axis, last axis first, as `F.pad` wants it."""
    pads: list[int] = []
    for k, (taps, dilation) in enumerate(zip(m.kernel_size, m.dilation, strict=True)):
        if m.padding == "same":  # an even kernel pads one more behind
            total = dilation * (taps - 1)
            pads = [total // 2, total - total // 2, *pads]
        else:
            amount = 0 if m.padding == "valid" else int(m.padding[k])
            pads = [amount, amount, *pads]
    return pads


def _axes(m: Convolution | Transposed, pads: Sequence[int]) -> tuple[Taps, Taps]:
    """Return the two axes of a convolution, whose padding is given as `F.pad` wants it."""
    axes = zip(m.kernel_size, m.dilation, m.stride, pads[2::-2], pads[3::-2], strict=True)
    y, x = (Taps(*axis) for axis in axes)
    return y, x


def _bias(m: Convolution | Transposed, dy: Tensor) -> dict[str, Part]:
    """Return the part of the bias; where there is none, the output gradients are not read for it."""
    return {} if m.bias is None else {"bias": Dense(wide(dy).sum((1, *range(3, dy.ndim))))}


def _convolved(
    m: Convolution | Transposed, seen: Tensor, placed: Tensor, pads: Sequence[int], mode: str = "constant"
) -> Convolved:
    """Build the part: patches of ``seen``, padded, and ``placed`` at their places, both [N, R, C, *space]."""
    groups, taps, width = m.groups, prod(m.kernel_size), wide(placed).dtype
    uses = placed.shape[1] * prod(placed.shape[3:])
    sizes = (groups, uses, seen.shape[2] // groups * taps, placed.shape[2] // groups)

    def images(start: int, stop: int) -> Tensor:
        return padded(seen[start:stop].flatten(0, 1).to(width), pads, mode)

    flat = len(m.kernel_size) == 2 and placed.shape[1] == 1 and seen.numel() > 0
    axes = _axes(m, pads) if mode == "constant" and flat and seen.device.type == "cpu" else None

    def unfolded(start: int, stop: int) -> Tensor:
        """Return patches [n, C · taps, uses], by a kernel on a CPU (torch's launches once for each image on a GPU)."""
        if axes is not None:
            found = native.patches(seen[start:stop, 0].to(width).contiguous(), *axes)
            if found is not None:
                return found
        return F.unfold(images(start, stop), m.kernel_size, m.dilation, 0, m.stride)

    def outer(start: int, stop: int) -> Outer:
        if flat and seen.device.type == "cpu":
            a = unfolded(start, stop).unflatten(1, (groups, -1))
            b = placed[start:stop, 0].to(width).reshape(stop - start, groups, sizes[3], uses)
            return Outer(a.transpose(2, 3), b.transpose(2, 3), m.weight.shape)
        patches = images(start, stop)
        for axis, (size, stride, dilation) in enumerate(
            zip(m.kernel_size, m.stride, m.dilation, strict=True)
        ):
            patches = patches.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
        space = len(m.kernel_size)
        patches = patches.unflatten(0, (stop - start, -1)).unflatten(2, (groups, -1))
        order = (0, 2, 3, *range(4 + space, 4 + 2 * space), 1, *range(4, 4 + space))
        a = patches.permute(order).reshape(stop - start, groups, sizes[2], uses)
        b = placed[start:stop].to(width).unflatten(2, (groups, -1)).movedim(1, 3)
        b = b.reshape(stop - start, groups, sizes[3], uses)
        return Outer(a.transpose(2, 3), b.transpose(2, 3), m.weight.shape)

    numbers = groups * uses * (sizes[2] + sizes[3])
    most = PATCHES if seen.device.type == "cpu" else individual.BLOCK
    block = max(1, most // max(1, numbers))
    inside = tuple(pads) if mode == "constant" else None
    return Convolved(outer, len(placed), m.weight.shape, block, images, seen, placed, m, sizes, inside)


@dataclass(frozen=True, eq=False)
class Convolved(Lazy):
    """Outer products with patches; linear questions are answered by convolutions, without patches."""

    images: Callable[[int, int], Tensor]
    seen: Tensor
    placed: Tensor
    module: Convolution | Transposed
    known_sizes: tuple[int, int, int, int]
    zeros: tuple[int, ...] | None
    """How many of them `images` pads with, as `F.pad` knows it; None where it pads with something else."""
    factor: float = 1.0

    def scaled(self, factor: float) -> Convolved:
        """Multiply what comes out, and the factors when they are formed."""
        return replace(
            self,
            outer=lambda start, stop: self.outer(start, stop).scaled(factor),
            factor=self.factor * factor,
        )

    def _convolution(self) -> dict[str, object]:
        m = self.module
        return {"stride": m.stride, "dilation": m.dilation, "groups": m.groups}

    def dot(self, direction: Tensor) -> Tensor:
        """Convolve with the direction and contract with what stands at the patches' places."""
        images = self.images(0, self.examples)
        there = CONVOLVE[len(self.module.kernel_size)](images, direction.to(images), **self._convolution())
        return (there.view_as(self.placed) * self.placed).flatten(1).sum(1) * self.factor

    def total(self, weights: Tensor | None = None) -> Tensor:
        """Return the weight gradient of one convolution over all examples."""
        images = self.images(0, self.examples)
        placed = self.placed.to(images)
        if weights is not None:
            placed = placed * weights.to(placed).view(-1, *[1] * (placed.ndim - 1))
        function = WEIGHT[len(self.module.kernel_size)]
        return function(images, self.shape, placed.flatten(0, 1), **self._convolution()) * self.factor

    def sizes(self) -> tuple[int, int, int, int]:
        """Return them as computed from the layer's geometry."""
        return self.known_sizes

    def products(self) -> Iterator[Products]:
        """Yield images and output gradients, without patches, as `cockpit.engine.kernels.images` lays them out."""
        m, (_, repeats, outputs, *space) = self.module, self.placed.shape
        if len(space) != 2 or m.groups != 1 or repeats != 1 or wide(self.placed).dtype != torch.float32:
            return
        window = Window(*(_pair(x) for x in (m.kernel_size, m.stride, m.dilation)))
        # TensorFloat-32 holds all bits of half precision
        half = torch.float32 not in (self.seen.dtype, self.placed.dtype)
        rough = half or rounds(torch.backends.cudnn)
        pack = rough and runs_on(self.placed) and window.worth_packing(self.seen.shape[2], outputs)
        numbers = window.numbers(self.seen[:, 0], self.placed[:, 0], pack)
        blocks = -(-self.examples * numbers // (16 * individual.BLOCK if pack else 4 * individual.BLOCK))
        block = max(1, -(-self.examples // max(1, min(self.examples, blocks))))  # all of one size
        for start in range(0, self.examples, block):
            stop = min(start + block, self.examples)
            placed = self.placed[start:stop, 0]
            if pack and self.zeros is not None:
                seen = self.seen[start:stop, 0]
                yield window.packed_products(seen, self.zeros, placed, self.factor)
            elif pack:
                yield window.packed_products(self.images(start, stop), (0, 0, 0, 0), placed, self.factor)
            else:
                yield window.products(self.images(start, stop), placed, rough, self.factor)


def _pair(x: Sequence[int]) -> tuple[int, int]:
    first, second = x
    return first, second
