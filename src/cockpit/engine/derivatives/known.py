"""Gradients that are known already, as a function of what they are made of: derived by a formula of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

Gradients = tuple[Tensor | None, ...]
Given = tuple[Any, ...]
"""Tensors that gradients are made of; each formula knows which may be missing."""
Twice = Callable[[Gradients, Given, Sequence[bool]], Gradients]
"""From vectors for the gradients, what these are made of, and which derivatives are needed: the derivatives by that."""
Hook = Callable[[Gradients, Gradients], Gradients | None]
"""Of a node: from its results and what it was called with, other results."""


class KnownGradients(torch.autograd.Function):
    """Gradients, and what they are made of."""

    @staticmethod
    def forward(ctx: Any, twice: Twice, count: int, *tensors: Tensor | None) -> Any:
        """Return the gradients; ``tensors`` are the ``count`` that they are made of, and these."""
        ctx.save_for_backward(*tensors[:count])
        ctx.set_materialize_grads(False)
        ctx.twice, ctx.more = twice, len(tensors) - count
        return tuple(None if g is None else g.detach() for g in tensors[count:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vectors: Tensor | None) -> Any:
        """Return the derivatives by what they are made of."""
        made_of = ctx.saved_tensors
        needed = ctx.needs_input_grad[2 : 2 + len(made_of)]
        found = ctx.twice(vectors, made_of, needed)
        return (
            None,
            None,
            *(g if asked else None for g, asked in zip(found, needed, strict=True)),
            *[None] * ctx.more,
        )


def derived_by(node: Node, made_of: Callable[[Any, Tensor], tuple[Given, Twice] | None]) -> Hook:
    """Return a hook that lets a node's gradients be derived by a formula of ours.

    Args:
        node: of the layer.
        made_of: returns, for the node and its output gradient, what the gradients are made of and the formula; None
            where torch is to derive them.
    """

    def hook(gradients: Gradients, deltas: Gradients) -> Gradients | None:
        delta = deltas[0]
        if delta is None or not torch.is_grad_enabled():
            return None
        try:
            kept = made_of(node, delta)
        except RuntimeError:  # a checkpoint that gives its tensors once: torch derives these gradients
            return None
        if kept is None:
            return None
        tensors, twice = kept
        known = [None if g is None else g.detach() for g in gradients]
        found: Gradients = KnownGradients.apply(twice, len(tensors), *tensors, *known)  # type: ignore[no-untyped-call]
        return found

    return hook
