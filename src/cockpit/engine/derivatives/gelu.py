r"""GELU, twice: the derivative of its gradient $\delta\,g'(x)$ by one look at what it is made of.

What a product with the Hessian makes of a vector $v$ is $v\,g'(x)$ and $v\,\delta\,g''(x)$. torch finds the second
in a dozen steps, of which each makes a tensor as large as a layer's outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.derivatives.known import Given, Gradients, Twice
from cockpit.engine.kernels import gelu as kernels
from cockpit.engine.kernels.trial import tried


def twice(
    v: Tensor, delta: Tensor, x: Tensor, approximate: str, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the derivatives by delta and input of what the gradient makes of a vector."""
    if all(needed) and native.is_there(v) and kernels.takes(delta, x):
        both = tried("gelu", lambda: kernels.gelu_twice(v, delta, x, approximate == "tanh"))
        if both is not None:
            return both
    by_delta = by_x = None
    if needed[0]:
        by_delta = torch.ops.aten.gelu_backward(v, x, approximate=approximate)
    if needed[1]:
        by_x = native.gelu_twice(v, delta, x, approximate == "tanh") if native.is_there(v) else None
        by_x = v * (delta * _second(x, approximate)) if by_x is None else by_x
    return by_delta, by_x


def _second(x: Tensor, approximate: str) -> Tensor:
    """Return the second derivative of GELU.

    With s and r, the logistic functions of 2u and -2u, tanh u = s - r and its derivative is 4 s r, of which no digit
    cancels where it is small; both take less time than a tanh.
    """
    if approximate != "tanh":
        return (-x.square() / 2).exp() * (2 - x.square()) / math.sqrt(2 * math.pi)
    k, square = math.sqrt(2 / math.pi), x.square()
    c = 0.044715 * k
    slope, twice_u = k + 3 * c * square, x * (2 * k + 2 * c * square)
    s, r = twice_u.sigmoid(), (-twice_u).sigmoid()
    return 4 * s * r * (k + 6 * c * square - (s - r) * x * slope.square())


def made_of(node: Any, delta: Tensor) -> tuple[Given, Twice] | None:
    """Return what a node's gradient is made of, and how it is derived."""
    x, approximate = node._saved_self, node._saved_approximate
    if not serves(delta, x):
        return None

    def formula(vectors: Gradients, given: Given, needed: Sequence[bool]) -> Gradients:
        (v,), (delta, x) = vectors, given
        return (None, None) if v is None else twice(v, delta, x, approximate, needed)

    return (delta, x), formula


def serves(delta: Tensor, x: Tensor) -> bool:
    """Say whether this is worth it: on a CPU, or where there is a kernel."""
    return delta.is_cpu or kernels.takes(delta, x)
