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

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cockpit.engine import native
from cockpit.engine.derivatives.known import Given, Gradients, Twice
from cockpit.engine.kernels import layer_norm as kernels
from cockpit.engine.kernels.trial import tried


def twice(
    vectors: Gradients,
    delta: Tensor,
    x: Tensor,
    w: Tensor | None,
    moments: tuple[Tensor, Tensor],
    axes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the derivatives by delta, input and weight of what the gradients make of some vectors.

    Args:
        vectors: one for each of the gradients by input, weight and bias.
        delta: the output gradient.
        x: the input.
        w: the weight.
        moments: mean and inverse deviation of each row, [..., 1, ...].
        axes: how many of the last axes are a row.
    """
    v = x.new_zeros(x.shape) if vectors[0] is None else vectors[0]
    a, b = (moments[0].new_zeros(x.shape[-axes:]) if g is None else g for g in vectors[1:])
    if all(map(native.is_there, (v, a, b))) and kernels.takes(delta, x, a.numel()):
        found = tried("layer_norm", lambda: kernels.layer_norm_twice((v, a, b), delta, x, w, moments))
        if found is not None:
            return found
    over = tuple(range(-axes, 0))

    def mean_of(t: Tensor) -> Tensor:
        return t.mean(over, keepdim=True)

    (mean, r), e = moments, delta if w is None else delta * w
    z = (x - mean) * r
    of_vz, of_ez = mean_of(v * z), mean_of(e * z)
    rest = mean_of(v * e) - mean_of(v) * mean_of(e) - of_vz * of_ez
    left = r * (v - mean_of(v) - z * of_vz)
    at_z = a * delta - r * (v * of_ez + e * of_vz)
    by_x = r * (at_z - mean_of(at_z) - z * (mean_of(at_z * z) + r * rest))
    by_w = (delta * left).sum(tuple(range(x.ndim - axes)))
    return (left if w is None else left * w) + a * z + b, by_x, by_w


def made_of(node: Any, delta: Tensor) -> tuple[Given, Twice] | None:
    """Return what a node's gradients are made of, and how they are derived."""
    x, axes = node._saved_input, len(node._saved_normalized_shape)
    if not serves(delta, x, axes):
        return None

    def formula(vectors: Gradients, given: Given, needed: Sequence[bool]) -> Gradients:
        delta, x, w, mean, scale = given
        return *twice(vectors, delta, x, w, (mean, scale), axes), None, None

    return (delta, x, node._saved_weight, node._saved_result1, node._saved_result2), formula


def serves(delta: Tensor, x: Tensor, axes: int) -> bool:
    """Say whether this is worth it: where there is a kernel."""
    return kernels.takes(delta, x, x.shape[-axes:].numel())
