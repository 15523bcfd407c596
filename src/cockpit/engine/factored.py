r"""Factored: a vector of a weight's size that is kept as the two thin factors it is a product of.

The gradient of a linear layer that is used once per example is $\sum_m b_m a_m^\top$: with few examples its factors are
smaller than it is, and projecting other examples' gradients on it takes inner products of factors,
$\langle b_n a_n^\top, \sum_m b_m a_m^\top\rangle = \sum_m \langle a_n, a_m\rangle\langle b_n, b_m\rangle$.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.products import product


@dataclass(frozen=True, eq=False)
class Factored:
    """Inputs ``a`` [M, I] and output gradients ``b`` [M, O] of a weight of some shape; both are our own."""

    a: Tensor
    b: Tensor
    shape: torch.Size

    @classmethod
    def of(cls, g: ExampleGradients) -> Factored | None:
        """Return the sum of individual gradients in this form, where it is the smaller one."""
        factors = g.thin_factors()
        if factors is None:
            return None
        # Activations belong to the user, who may overwrite them (with the next batch, say).
        return cls(factors[0].clone(), factors[1].clone(), g.parameter.shape)

    def dot(self, g: ExampleGradients) -> Tensor:
        """Return the projections of individual gradients on it, [N]."""
        factors = g.factors_of_one_use()
        if factors is None:
            return g.dot(self.dense())
        a, b = factors
        return (product(a, self.a.T) * product(b, self.b.T)).sum(1)

    def dense(self) -> Tensor:
        """Return it written out."""
        return product(self.b.T, self.a).reshape(self.shape)


Vectors = Mapping[str, tuple[Tensor | Factored, float]]
"""A vector of the model's size: of every parameter a tensor (or its factors) and a factor."""
