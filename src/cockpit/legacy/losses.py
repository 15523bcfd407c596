r"""The losses of the examples, made such that their mean is the user's objective.

The user differentiates ``loss``, not the individual losses, so no hook on these sees how the objective weighs
them. With $\ell_n' = c\,\ell_n$ and $c = L / \frac1N\sum_n\ell_n$ (1 under ``reduction="mean"``, N under
``"sum"``) the objective is $\frac1N\sum_n\ell_n'$, which the engine assumes where it is not told, and every
number is that of the objective.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.derivatives.graph import frontier
from cockpit.errors import Gap
from cockpit.legacy.extension import unreduced


def individual_losses(info: Mapping[str, Any]) -> Tensor | None:
    """Return one loss per example, [N], with a graph, whose mean is ``info["loss"]``; None if not known.

    Those handed in are taken if their mean or sum is the loss; else those behind an extended loss function,
    whatever its class weights or ignored labels.
    """
    loss: Tensor = info["loss"]
    given = info.get("individual_losses")
    handed_in = None
    if isinstance(given, Tensor) and given.requires_grad and given.numel() > 0:
        handed_in = by_example(given, info)
        ratio, near = _ratio(loss, handed_in), _reduction(loss, handed_in)
        if math.isclose(ratio, near, rel_tol=math.sqrt(torch.finfo(loss.dtype).eps)):
            return handed_in * near
    own = unreduced(loss)
    if own is not None:
        own = by_example(own, info)
        return own * _ratio(loss, own)
    if handed_in is not None:
        text = (
            f"the loss is neither the mean nor the sum of the individual losses, but {ratio:.4g} times the "
            f"mean; individual gradients are computed as if it were their {'mean' if near == 1 else 'sum'}."
        )
        warnings.warn(text, stacklevel=6)
        return handed_in * near
    return None


def stand_ins(
    info: Mapping[str, Any], outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]
) -> Tensor | None:
    r"""Return losses with the right gradients and the right mean, from the loss and the outputs alone.

    $\tilde\ell_n = p_n + (L - \frac1N\sum_m p_m)$ with $p_n = N f_n^\top \partial L/\partial f_n$, the
    derivative held fixed. The bracket has no gradient here, so $\nabla\tilde\ell_n = \nabla p_n$, which is
    $\nabla\ell_n$; and the mean of all is $L$ itself, Hessian included. None if the loss is not a function of
    the model's outputs.
    """
    loss: Tensor = info["loss"]
    try:
        used = [outputs[k] for k in frontier(loss, outputs, parameters)]
    except Gap:
        return None
    if any(f.ndim == 0 or len(f) != len(used[0]) for f in used):
        return None
    slopes = torch.autograd.grad(loss, used, retain_graph=True)
    terms = [(f * slope).reshape(len(f), -1).sum(1) for f, slope in zip(used, slopes, strict=True)]
    each = by_example(len(used[0]) * torch.stack(terms).sum(0), info)
    return each + (loss - each.mean())


def values(info: Mapping[str, Any]) -> Tensor | None:
    """Return the values of the losses handed in, [N] in float64, scaled like `individual_losses`."""
    given = info.get("individual_losses")
    if not isinstance(given, Tensor) or given.numel() == 0:
        return None
    losses = by_example(given.detach().double(), info)
    return losses * _reduction(info["loss"], losses)


def by_example(losses: Tensor, info: Mapping[str, Any]) -> Tensor:
    """Average losses of tokens or pixels, so that an example has one."""
    size = info.get("batch_size")
    if losses.ndim == 1 and isinstance(size, int) and 0 < size < len(losses) and len(losses) % size == 0:
        losses = losses.reshape(size, -1)
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses.reshape(-1)


def _ratio(loss: Tensor, losses: Tensor) -> float:
    mean = float(losses.detach().double().mean())
    ratio = float(loss.detach()) / mean if mean else 1.0
    return ratio if math.isfinite(ratio) else 1.0


def _reduction(loss: Tensor, losses: Tensor) -> int:
    """Return 1 (a mean) or N (a sum), whichever factor is closer."""
    ratio, n = _ratio(loss, losses), len(losses)
    return n if ratio > 0 and abs(math.log(ratio / n)) < abs(math.log(ratio)) else 1
