r"""The gradients of attention by the textbook formula, in operations that can be differentiated again.

$P = \mathrm{softmax}(s\,QK^\top + M)$, $dV = P^\top dO$, $dS = P \odot (dP - \langle dP, P\rangle)$ with
$dP = dO\,V^\top$, $dQ = s\,dS\,K$, $dK = s\,dS^\top Q$, $dM = dS$.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cockpit.engine.derivatives.softmax import SoftmaxGradient


def attention_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    result: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of attention's inputs, given its result's, in differentiable operations."""
    wide = torch.promote_types(query.dtype, torch.float32)
    q, g = query.to(wide), result.to(wide)
    repeats = (
        (query.shape[-3] // key.shape[-3], query.shape[-3] // value.shape[-3]) if query.ndim > 2 else (1, 1)
    )
    k, v = (
        x.to(wide).repeat_interleave(n, -3) if n > 1 else x.to(wide)
        for x, n in zip((key, value), repeats, strict=True)
    )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (factor * q) @ k.transpose(-1, -2)
    p = _softmax(scores, mask, causal)
    dp = g @ v.transpose(-1, -2)
    ds: Tensor = SoftmaxGradient.apply(p, dp)  # type: ignore[no-untyped-call]
    dq, dk, dv = factor * (ds @ k), factor * (ds.transpose(-1, -2) @ q), p.transpose(-1, -2) @ g
    dm = None if mask is None or mask.dtype == torch.bool else ds.sum_to_size(mask.shape).to(mask.dtype)
    return folded(dq, query), folded(dk, key), folded(dv, value), dm


def _softmax(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return the softmax of the scores where queries may look; rows that may look nowhere give zero."""
    if mask is None and not causal:
        return scores.softmax(-1)
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.device)
    if causal:
        hidden = ~torch.ones_like(hidden).tril()
    if mask is None:  # everybody may look at the first key
        return scores.masked_fill(hidden, -math.inf).softmax(-1)
    if mask.dtype == torch.bool:
        hidden = hidden | ~mask
    else:
        scores = scores + mask
        hidden = hidden | (mask == -math.inf)
    blind = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden & ~blind, -math.inf).masked_fill(blind, 0)
    return scores.softmax(-1).masked_fill(blind, 0)


def folded(grad: Tensor, like: Tensor) -> Tensor:
    """Sum a gradient over the query heads that share one head of ``like``, and over broadcast axes."""
    if like.ndim > 2 and grad.shape[-3] != like.shape[-3]:
        grad = grad.unflatten(-3, (like.shape[-3], -1)).sum(-3)
    return grad.sum_to_size(like.shape).to(like.dtype)
