r"""Weights: how much each example counts in the user's objective, $w_i = \partial L / \partial \ell_i$.

They come with the backward pass, on the device, and what has to be done depends on them; so they are read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a micro-batch, [N], where they came and as the host knows them."""

    values: Tensor
    host: Tensor

    @classmethod
    def read(cls, values: Tensor) -> Weights:
        """Wait for the device, once."""
        values = values.detach()
        return cls(values, values.double().cpu())

    @cached_property
    def common(self) -> float | None:
        """The weight that all examples have; None if they differ, or it is one that nothing can be divided by."""
        first = float(self.host[0])
        same = isfinite(first) and first != 0 and bool((self.host == first).all())
        return first if same else None

    @cached_property
    def counted(self) -> int:
        """How many examples have a weight that is not zero."""
        return int(self.host.count_nonzero())

    @property
    def keep(self) -> Tensor | None:
        """Which examples count (None: all)."""
        if self.counted == len(self.host):
            return None
        return torch.nonzero(self.host).flatten().to(self.values.device)
