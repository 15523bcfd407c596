r"""Layer normalisation, twice: the derivative of its gradients from one look at every row.

Of a row of F features $z = r\,(x - \mu)$ and with $e = \gamma\delta$ the gradients are
$r\,(e - \langle e\rangle - z\,\langle ez\rangle)$, and $\sum\delta z$ and $\sum\delta$ over rows. Vectors $v$, $a$ and
$b$ for these three give, with $\rho = \langle ve\rangle - \langle v\rangle\langle e\rangle - \langle vz\rangle
\langle ez\rangle$ and $c = a\delta - r\,(v\,\langle ez\rangle + e\,\langle vz\rangle)$, the derivatives

.. math::
    \gamma\, r\,(v - \langle v\rangle - z\,\langle vz\rangle) + a z + b, \qquad
    r\,(c - \langle c\rangle - z\,(\langle cz\rangle + r\rho)), \qquad
    \sum \delta\, r\,(v - \langle v\rangle - z\,\langle vz\rangle)

by $\delta$, input and $\gamma$. torch makes them in two dozen steps, each as large as the layer's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cockpit.engine import native
from cockpit.engine.kernels import layer_norm as kernels
from cockpit.engine.kernels.trial import tried

Gradients = tuple[Tensor | None, ...]
"""By input, weight and bias."""


class LayerNormGradients(torch.autograd.Function):
    """Gradients that are known already, as a function of what they are made of."""

    @staticmethod
    def forward(
        ctx: Any,
        delta: Tensor,
        x: Tensor,
        w: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        *known: Tensor | None,
    ) -> Any:
        """Return the known gradients."""
        ctx.save_for_backward(delta, x, w, mean, scale)
        ctx.set_materialize_grads(False)
        return tuple(None if g is None else g.detach() for g in known)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x: Tensor | None, by_w: Tensor | None, by_b: Tensor | None) -> Any:
        """Return the derivatives by delta, input and weight."""
        delta, x, w, mean, scale = ctx.saved_tensors
        found = twice((by_x, by_w, by_b), delta, x, w, (mean, scale))
        needed = zip(found, ctx.needs_input_grad, strict=False)
        return *(g if asked else None for g, asked in needed), *[None] * 5


def twice(
    vectors: Gradients, delta: Tensor, x: Tensor, w: Tensor | None, moments: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by delta, input and weight of what the gradients make of some vectors.

    Args:
        vectors: one for each of the gradients by input, weight and bias.
        delta: the output gradient.
        x: the input.
        w: the weight.
        moments: mean and inverse deviation of each row, [..., 1, ...] over the axes that are normalised.
    """
    mean, r = moments
    axes = x.ndim - next((k for k, size in enumerate(mean.shape) if size != x.shape[k]), x.ndim)
    known = next((g for g in vectors[1:] if g is not None), None)
    sums = mean.new_zeros(x.shape[x.ndim - axes :]) if known is None else torch.zeros_like(known)
    v = torch.zeros_like(x) if vectors[0] is None else vectors[0]
    a, b = (sums if g is None else g for g in vectors[1:])
    features = a.numel()
    if all(map(native.is_there, (v, a, b))) and kernels.takes(delta, x, features):
        found = tried("layer_norm", lambda: kernels.layer_norm_twice((v, a, b), delta, x, w, moments))
        if found is not None:
            return found
    over = tuple(range(-a.ndim, 0))
    e = delta if w is None else delta * w

    def mean_of(t: Tensor) -> Tensor:
        return t.mean(over, keepdim=True)

    z = (x - mean) * r
    of_vz, of_ez = mean_of(v * z), mean_of(e * z)
    rest = mean_of(v * e) - mean_of(v) * mean_of(e) - of_vz * of_ez
    left = r * (v - mean_of(v) - z * of_vz)
    at_z = a * delta - r * (v * of_ez + e * of_vz)
    by_x = r * (at_z - mean_of(at_z) - z * (mean_of(at_z * z) + r * rest))
    by_w = (delta * left).flatten(0, x.ndim - a.ndim - 1).sum(0)
    return (left if w is None else left * w) + a * z + b, by_x, by_w
