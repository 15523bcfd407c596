r"""Batch normalisation, twice: the derivative of its gradients from two looks at the images.

Of a channel with numbers $\hat x = s\,(x - \mu)$ the gradients are
$\gamma s\,(\delta - \langle\delta\rangle - \hat x\,\langle\delta\hat x\rangle)$, $\sum\delta\hat x$ and $\sum\delta$,
with means $\langle\cdot\rangle$ over the channel. What a product with the Hessian makes of them is a combination of the
vector $v$ that comes in, of $\delta$, $\hat x$ and 1, with factors made of five sums. torch takes more than twenty
looks, of which each makes a tensor as large as the images: several times as long as the convolution before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.derivatives.known import Given, Gradients, Twice
from cockpit.engine.kernels import batch_norm as kernels
from cockpit.engine.kernels.trial import tried


def twice(
    vectors: Gradients, delta: Tensor, x: Tensor, w: Tensor | None, moments: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by delta, input and weight of what the gradients make of some vectors.

    Args:
        vectors: one for each of the gradients by input, weight and bias.
        delta: the output gradient.
        x: the input, [N, C, ...].
        w: the weight.
        moments: mean and inverse deviation of each channel.
    """
    v, a, b = (
        torch.zeros_like(like) if g is None else g
        for g, like in zip(vectors, (x, moments[0], moments[0]), strict=True)
    )
    if all(map(native.is_there, (v, a, b))):
        found = native.batch_norm_twice((v, a, b), delta, x, w, moments)
        if found is None and kernels.takes(delta, x):
            whole = (v, a, b)
            found = tried("batch_norm", lambda: kernels.batch_norm_twice(whole, delta, x, w, moments))
        if found is not None:
            return found
    over, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    count = x.numel() // x.shape[1]
    mean, s, a, b = (t.view(shape) for t in (*moments, a, b))
    z, g = (x - mean) * s, s if w is None else s * w.view(shape)
    v, d = (t - t.mean(over, keepdim=True) for t in (v, delta))  # before they meet: else digits cancel
    vz, dz, vd = (t.mean(over, keepdim=True) for t in (v * z, d * z, v * d))
    rest, of_d, of_v = vd - vz * dz, a - g * vz, -g * dz
    by_x = s * (of_d * d + of_v * v - (of_d * dz + of_v * vz + g * rest) * z)
    return g * v + of_d * z + b, by_x, (s * rest).reshape(-1) * count


def made_of(node: Any, delta: Tensor) -> tuple[Given, Twice] | None:
    """Return what a node's gradients are made of, and how they are derived."""
    if not serves(node, delta):
        return None
    return (delta, node._saved_input, node._saved_weight, node._saved_result1, node._saved_result2), formula


def formula(vectors: Gradients, given: Given, needed: Sequence[bool]) -> Gradients:
    """Return the derivatives; those by the moments are in that by the input."""
    delta, x, w, mean, scale = given
    return *twice(vectors, delta, x, w, (mean, scale)), None, None


def serves(node: Any, delta: Tensor) -> bool:
    """Say whether this is about moments of the batch, and worth it: on a CPU, or where there are kernels.

    cuDNN's gradients are of such moments alone, and their node does not say so.
    """
    said = [getattr(node, name) for name in ("_saved_training", "_saved_train") if hasattr(node, name)]
    return all(said) and (delta.is_cpu or kernels.takes(delta, node._saved_input))
