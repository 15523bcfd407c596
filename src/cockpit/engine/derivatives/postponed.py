r"""Gradients by weights that are not computed, for who derives a gradient again: its numbers are not needed for that.

The gradient $g$ of a weight is a product that costs as much as the layer. Of a vector $v$ it makes
$\langle g, v\rangle = \langle\delta, A(x, v)\rangle$, with $A$ the layer, linear in its input $x$ and in its weight,
and $\delta$ its output gradient; what flows back from there is all that a product with the Hessian takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cockpit.engine.derivatives.convolution import settings_of
from cockpit.engine.derivatives.graph import Edge, edge
from cockpit.engine.derivatives.lean import Call
from cockpit.engine.numbers.products import Multiply, multiplier

Incoming = Tensor | Callable[[], Tensor]
"""A gradient that comes in, or what makes it when it is its turn."""

WEIGHTED = {
    "AddmmBackward0": (1, 2, "_saved_mat1"),
    "MmBackward0": (0, 1, "_saved_self"),
    "ConvolutionBackward0": (0, 1, "_saved_input"),
}
"""Of layers that multiply their input with a weight: which results are by both, and where the input is kept."""


@dataclass(frozen=True, eq=False)
class Postponed(ABC):
    """The gradient of a weight that a layer multiplies its input with, as what it is made of."""

    delta: Tensor
    """The layer's output gradient."""
    x: Tensor
    """Its input."""
    behind: Edge
    """Where the input's gradient goes."""

    def edges(self) -> list[Edge]:
        """Return where derivatives of the product with a vector come in."""
        own = edge(self.delta)
        return [e for e in (own, self.behind) if e is not None and e[0] is not None]

    def vectors(self, v: Tensor, batched: bool) -> list[Incoming]:
        """Return those derivatives."""
        multiply = multiplier(batched)
        own = [partial(self.ahead, v, multiply)] if self.delta.requires_grad else []
        return [*own, *([partial(self.back, v, multiply)] if self.behind[0] is not None else [])]

    @abstractmethod
    def ahead(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return what the layer makes of its input with another weight."""

    @abstractmethod
    def back(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return what it makes of its output gradient with another weight."""


@dataclass(frozen=True, eq=False)
class Multiplied(Postponed):
    """Of a product of matrices; ``turned``: with the weight transposed."""

    turned: bool

    def ahead(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return the product with another weight."""
        return multiply(self.x, v.mT if self.turned else v)

    def back(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return the output gradient's."""
        return multiply(self.delta.detach(), v if self.turned else v.mT)


@dataclass(frozen=True, eq=False)
class Convolved(Postponed):
    """Of a convolution with some settings."""

    settings: tuple[Any, ...]

    def ahead(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return the convolution with another weight."""
        found: Tensor = torch.ops.aten.convolution(self.x, v, None, *self.settings)
        return found

    def back(self, v: Tensor, multiply: Multiply) -> Tensor:
        """Return that of the output gradient."""
        mask = [True, False, False]
        backward = torch.ops.aten.convolution_backward
        found: Tensor = backward(self.delta.detach(), self.x, v, None, *self.settings, mask)[0]
        return found


def postponed(node: Node, call: Call, ends: Collection[Edge]) -> tuple[Edge, Postponed] | None:
    """Postpone the gradient by a layer's weight, if it is wanted as it is: it is not needed of the node then.

    Returns the edge of the weight and what belongs to its gradient.
    """
    x, weight, kept = WEIGHTED.get(node.name(), (0, 0, ""))
    if not weight or not call.needed[weight] or getattr(node, "_saved_alpha", 1) != 1:
        return None
    behind, convolves = node.next_functions[weight], node.name() == "ConvolutionBackward0"
    turned = behind[0] is not None and behind[0].name() == "TBackward0" and behind not in ends
    end: Any = behind[0].next_functions[0] if turned and behind[0] is not None else behind
    delta, given = call.grads[0], getattr(node, kept)
    if delta is None or given is None or given.is_complex() or end not in ends or (turned and convolves):
        return None
    call.needed[weight] = False
    given, beyond = given.detach(), cast(Edge, node.next_functions[x])
    if convolves:
        return end, Convolved(delta, given, beyond, settings_of(node))
    return end, Multiplied(delta, given, beyond, turned)
