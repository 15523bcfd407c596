r"""Second derivatives through fused attention.

The fused kernels behind ``F.scaled_dot_product_attention`` have no double backward. While
`twice_differentiable_attention` is active, calls that fall on such a kernel get a gate on either side::

    q, k, v, mask ─▶ Entry ─▶ fused kernel ─▶ Exit ─▶ result
                       └────── empty bypass ────┘

Forward and ordinary backward passes run the same kernels on the same numbers, to the bit. Only under
``create_graph=True`` the exit hands the gradient to the entry by the bypass, around the kernel, and the entry
computes the input gradients in operations that can be differentiated again: by kernels where there are some
(`fused_attention.py`), by the textbook formula elsewhere (`textbook_attention.py`).

Calls with dropout are left alone, because the kernel's mask cannot be seen from outside: their second
derivatives still raise. Keep it active until the backward pass is over: activation checkpointing repeats the
forward pass then and must meet the same operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit.engine.derivatives.fused_attention import AttentionGradients, serves
from cockpit.engine.derivatives.graph import edge, edges_behind
from cockpit.engine.derivatives.textbook_attention import attention_gradients
from cockpit.engine.derivatives.walked import Walked


class Entry(Walked):
    """Passes query, key, value and mask on, and zeros as the bypass for the result's gradient."""

    settings = ("causal", "scale")

    @staticmethod
    def forward(
        ctx: Any, causal: bool, scale: float | None, shape: tuple[int, ...], *inputs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the inputs and the bypass."""
        Entry.note(ctx, causal, scale, shape, *inputs)
        ctx.causal, ctx.scale = causal, scale
        ctx.save_for_backward(*inputs)
        needed = ctx.needs_input_grad[3:]
        ctx.mark_non_differentiable(
            *(x for x, need in zip(inputs, needed, strict=True) if x is not None and not need)
        )
        query = inputs[0]
        assert query is not None
        return *inputs, query.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the kernel's gradients, or the formula's where the result's gradient came by the bypass."""
        *known, result = grads
        if result is None:
            return None, None, None, *known
        query, key, value, mask = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            if serves(query, key, value, mask, result):
                apply = AttentionGradients.apply
                found = *apply(ctx.causal, ctx.scale, query, key, value, result), None  # type: ignore[no-untyped-call]
            else:
                found = attention_gradients(query, key, value, mask, ctx.causal, ctx.scale, result)
        needed = ctx.needs_input_grad[3:]
        return None, None, None, *(g if need else None for g, need in zip(found, needed, strict=True))


class Exit(Walked):
    """Passes the kernel's result on; sends its gradient round the kernel where it will be derived again."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, bypass: Tensor) -> Tensor:
        """Return the result, as a tensor of its own over the same memory."""
        Exit.note(ctx, result, bypass)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradient for the kernel or for the bypass."""
        return (None, grad) if torch.is_grad_enabled() else (grad, None)


def is_fused(result: Tensor, start: Tensor) -> bool:
    """Say whether the graph between an attention's inputs and its result holds a fused kernel."""
    here, behind = edge(result), edge(start)
    if here is None or behind is None:
        return False
    walls = [(behind[0], k) for k in range(5)]
    return any("ScaledDotProduct" in node.name() for node, _ in edges_behind([here], walls))


def recorded(inputs: tuple[Tensor | None, ...]) -> bool:
    """Say whether plain eager autograd records a call with these inputs."""
    tensors = [x for x in inputs if x is not None]
    return (
        torch.is_grad_enabled()
        and any(x.requires_grad for x in tensors)
        and all(type(x) in (Tensor, torch.nn.Parameter) and not x.is_nested for x in tensors)
        and not torch._C._get_tracing_state()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def gated(original: Callable[..., Tensor], active: Callable[[], bool]) -> Callable[..., Tensor]:
    """Return a stand-in for ``original`` that adds the gates while ``active``."""

    @wraps(original)
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        inputs = (query, key, value, attn_mask)
        more = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if torch.compiler.is_compiling() or dropout_p > 0 or not active() or not recorded(inputs):
            return original(query, key, value, attn_mask=attn_mask, **more)
        shape = (*query.shape[:-1], value.shape[-1])  # fused kernels do not broadcast
        q, k, v, mask, bypass = Entry.apply(is_causal, scale, shape, *inputs)  # type: ignore[no-untyped-call]
        result = original(q, k, v, attn_mask=mask, **more)
        if result.shape == bypass.shape and is_fused(result, bypass):
            result = Exit.apply(result, bypass)  # type: ignore[no-untyped-call]
        return result

    return scaled_dot_product_attention


class Installation:
    """Who needs the stand-in, over all threads, and which function it stands in for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.original: Callable[..., Tensor] = F.scaled_dot_product_attention
        self.standin: Callable[..., Tensor] | None = None

    def enter(self) -> None:
        """Put the stand-in into ``torch.nn.functional`` for the first who needs it."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                # A new one each time: somebody may have wrapped the last one and kept it.
                self.original = F.scaled_dot_product_attention
                self.standin = gated(self.original, lambda: self.users > 0)
                F.scaled_dot_product_attention = self.standin

    def leave(self) -> None:
        """Take it out after the last, unless somebody else's is there by now: then it only stands by."""
        with self.lock:
            self.users -= 1
            if self.users == 0 and F.scaled_dot_product_attention is self.standin:
                F.scaled_dot_product_attention = self.original


INSTALLATION = Installation()


@contextmanager
def twice_differentiable_attention() -> Iterator[None]:
    """Make attention called inside the block differentiable twice; blocks may nest and overlap in threads."""
    INSTALLATION.enter()
    try:
        yield
    finally:
        INSTALLATION.leave()
