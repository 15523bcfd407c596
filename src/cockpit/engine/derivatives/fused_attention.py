"""The gradients of attention, derived again by kernels that form no matrix of scores.

The gradients themselves are once more those of torch's own fused kernel. What a product with the Hessian makes of them
(`cockpit.engine.kernels.attention`) takes memory that grows with the length of a sequence; by the textbook formula a
dozen matrices of scores in single precision are written and read for each head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cockpit.engine import native
from cockpit.engine.derivatives.textbook_attention import attention_gradients
from cockpit.engine.derivatives.walked import Walked
from cockpit.engine.kernels import attention
from cockpit.engine.kernels.trial import tried


class AttentionGradients(Walked):
    """The gradients by query, key and value, as a function of these and of the result's."""

    @staticmethod
    def forward(
        ctx: Any, causal: bool, scale: float | None, query: Tensor, key: Tensor, value: Tensor, delta: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the gradients by torch's kernel."""
        AttentionGradients.note(ctx, causal, scale, query, key, value, delta)
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(query, key, value, delta)
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (query, key, value))
            result = torch._C._nn.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return torch.autograd.grad(result, (q, k, v), delta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *vectors: Any) -> tuple[Tensor | None, ...]:
        """Return the derivatives by query, key, value and the result's gradient."""
        given = ctx.saved_tensors
        vectors = tuple(torch.zeros_like(x) if v is None else v for v, x in zip(vectors, given, strict=False))
        if all(map(native.is_there, vectors)):
            factor = 1 / math.sqrt(given[0].shape[-1]) if ctx.scale is None else ctx.scale
            found = tried("attention", lambda: attention.attention_twice(vectors, given, ctx.causal, factor))
            if found is not None:
                return None, None, *found
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in given]
            q, k, v, d = leaves
            gradients = attention_gradients(q, k, v, None, ctx.causal, ctx.scale, d)[:3]
        return None, None, *torch.autograd.grad(gradients, leaves, vectors)


def serves(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, delta: Tensor) -> bool:
    """Say whether there are kernels for this call of attention."""
    return mask is None and native.is_there(delta) and attention.takes(query, key, value, delta)
