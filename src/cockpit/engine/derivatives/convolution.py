r"""Convolutions, twice: the derivative of a convolution's gradients without needless work.

A convolution $z = A(x, w)$ is linear in both arguments, and so are its gradients $A_x^\top(\delta, w)$ and
$A_w^\top(\delta, x)$ in theirs. What flows back through them in a product with the Hessian is made of the same three
operations. torch makes them too, but also the derivative by an input that nobody asks for (that of the first layer, the
data: as dear as all else there), and others by convolutions with kernels as large as the images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Gradients = tuple[Tensor | None, ...]
"""By input, weight and bias."""


class ConvolutionGradients(torch.autograd.Function):
    """Gradients that are known already, as a function of what they are made of."""

    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, x: Tensor, w: Tensor, settings: tuple[Any, ...], *known: Tensor | None
    ) -> Any:
        """Return the known gradients."""
        ctx.save_for_backward(delta, x, w)
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        return tuple(None if g is None else g.detach() for g in known)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x: Tensor | None, by_w: Tensor | None, by_b: Tensor | None) -> Any:
        """Return the derivatives by delta, input and weight."""
        delta, x, w = ctx.saved_tensors
        found = twice(delta, x, w, ctx.settings, (by_x, by_w, by_b), ctx.needs_input_grad)
        return *found, *[None] * 4


def twice(
    delta: Tensor, x: Tensor, w: Tensor, settings: tuple[Any, ...], vectors: Gradients, needed: Sequence[bool]
) -> Gradients:
    """Return the derivatives by delta, input and weight of what the gradients make of some vectors.

    Args:
        delta: the output gradient.
        x: the input.
        w: the weight.
        settings: stride, padding, dilation, whether transposed, output padding, groups.
        vectors: one for each of the gradients by input, weight and bias.
        needed: which of the derivatives are.
    """
    by_x, by_w, by_b = vectors
    of_delta = of_x = of_w = None
    backward = torch.ops.aten.convolution_backward
    if needed[0] and by_w is not None:
        of_delta = torch.ops.aten.convolution(x, by_w, by_b, *settings)
    elif needed[0] and by_b is not None:
        of_delta = by_b.view(-1, *[1] * (delta.ndim - 2)).expand_as(delta)
    if needed[0] and by_x is not None:
        more = torch.ops.aten.convolution(by_x, w, None, *settings)
        of_delta = more if of_delta is None else more.add_(of_delta)
    if needed[1] and by_w is not None:
        of_x = backward(delta, x, by_w, None, *settings, [True, False, False])[0]
    if needed[2] and by_x is not None:
        of_w = backward(delta, by_x, w, None, *settings, [False, True, False])[1]
    return of_delta, of_x, of_w


def settings_of(node: Any) -> tuple[Any, ...]:
    """Return the settings of a convolution from its node, or from that of its gradients."""
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    return tuple(getattr(node, f"_saved_{name}") for name in names)


def derived(node: Any) -> Callable[[Gradients, Gradients], Gradients | None]:
    """Return a hook that lets a node's gradients be derived by `ConvolutionGradients`."""

    def hook(gradients: Gradients, deltas: Gradients) -> Gradients | None:
        delta = deltas[0]
        if delta is None or not torch.is_grad_enabled():
            return None
        try:
            x, w = node._saved_input, node._saved_weight
        except RuntimeError:  # a checkpoint that gives its tensors once: torch derives these gradients
            return None
        known = (None if g is None else g.detach() for g in gradients)
        found: Gradients = ConvolutionGradients.apply(delta, x, w, settings_of(node), *known)  # type: ignore[no-untyped-call]
        return found

    return hook
