"""Factors of gradients for tests of the kernels that multiply them."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.kernels import Products
from cockpit.engine.kernels.language import INTERPRETED
from cockpit.engine.numbers.binning import Grid

GRID, CPU = Grid(100, -2.0, 2.0), torch.device("cpu")
DEVICE = torch.device("cuda" if kernels.available() and not INTERPRETED else "cpu")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE, dtype)


def inputs_and_gradients(
    device: torch.device, *shape: int, mean: float = 0.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x, dy = (torch.randn(*shape, generator=g, dtype=torch.float64) for _ in range(2))
    return (x + mean).to(device, dtype), dy.to(device, dtype)


def written_out(products: Products) -> Tensor:
    """[N, O, I, T] in float64."""
    a, b = products.a.double(), products.b.double()
    uses = b.shape[2]
    return torch.stack([b @ a[:, :, s : s + uses].transpose(1, 2) for s in products.shifts.tolist()], 3)
