r"""Factored: a vector of a weight's size that is kept as the two thin factors it is a product of.

The gradient of a linear layer that is used once per example is $\sum_m b_m a_m^\top$: with few examples its factors are
smaller than it is, and projecting other examples' gradients on it takes inner products of factors,
$\langle b_n a_n^\top, \sum_m b_m a_m^\top\rangle = \sum_m \langle a_n, a_m\rangle\langle b_n, b_m\rangle$.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.numbers.products import product
from cockpit.engine.seeing.use import Use


@dataclass(frozen=True, eq=False)
class Factored:
    """Inputs ``a`` [M, I] and output gradients ``b`` [M, O] of a weight of some shape.

    They are not copied where the model made them. Should it write into them nevertheless, they are not `intact`.
    """

    a: Tensor
    b: Tensor
    shape: torch.Size
    _versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._versions.extend([self.a._version, self.b._version])

    @property
    def intact(self) -> bool:
        """Whether nobody has written into the factors."""
        return [self.a._version, self.b._version] == self._versions

    @classmethod
    def of(cls, g: ExampleGradients, sources: Iterable[Use]) -> Factored | None:
        """Return the sum of individual gradients in this form, where it is the smaller one; ``sources``: whose."""
        factors = g.thin_factors()
        if factors is None:
            return None
        a, b = factors
        # Data belong to the user, who may overwrite them with the next batch, in ways that nobody sees.
        given = {memory for use in sources for memory in use.given()}
        return cls(a.clone() if _memory(a) in given else a, b, g.parameter.shape)

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


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


Vectors = dict[str, tuple[Tensor | Factored, float]]
"""A vector of the model's size: of every parameter a tensor (or its factors) and a factor."""
