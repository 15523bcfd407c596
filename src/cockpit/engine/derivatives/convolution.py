r"""Convolutions, twice: the derivative of a convolution's gradients without needless work.

A convolution $z = A(x, w)$ is linear in both arguments, and so are its gradients $A_x^\top(\delta, w)$ and
$A_w^\top(\delta, x)$ in theirs. What flows back through them in a product with the Hessian is made of the same three
operations. torch makes them too, but also the derivative by an input that nobody asks for (that of the first layer, the
data: as dear as all else there), and others by convolutions with kernels as large as the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.derivatives.known import Given, Gradients, Twice


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


def made_of(node: Any, delta: Tensor) -> tuple[Given, Twice]:
    """Return what a node's gradients are made of, and how they are derived."""
    settings = settings_of(node)

    def formula(vectors: Gradients, given: Given, needed: Sequence[bool]) -> Gradients:
        delta, x, w = given
        return twice(delta, x, w, settings, vectors, needed)

    return (delta, node._saved_input, node._saved_weight), formula
