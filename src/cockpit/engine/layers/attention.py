"""Multi-head attention, whose projections are used without their modules being called.

The layer is run again from its inputs, and its output gradient is taken back to the projections $q, k, v$;
the four projections are then linear layers. With dropout the same mask is needed: the random state from
before the forward pass is restored, and the operations are those of `torch.nn.functional`, in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.gradients.parts import Dense, Outer, Part
from cockpit.engine.layers.formula import Call, Layout, arguments, formula
from cockpit.engine.layers.linear import outer
from cockpit.engine.numbers.precision import wide

ROWS = Layout(0)
"""Everything here is computed with the examples in front, [N, T, E]."""


def _candidates(module: nn.Module, outputs: tuple[Tensor, ...], n: int) -> list[tuple[Layout, ...]]:
    axis = 0 if module.batch_first else 1
    return [(Layout(axis), ROWS)[: len(outputs)]] if outputs[0].shape[axis] == n else []


def _refuses(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    given = arguments(module, args, kwargs)
    if module.bias_k is not None or module.bias_v is not None:
        return "bias_k and bias_v are keys and values that belong to no input"
    if module.add_zero_attn:
        return "add_zero_attn appends a key and a value that belong to no input"
    if any(given[name].is_nested for name in ("query", "key", "value")):
        return "nested tensors have no common number of tokens"
    return "the input has no batch axis" if given["query"].ndim == 2 else None


def _drops(m: nn.Module) -> bool:
    assert isinstance(m, nn.MultiheadAttention)
    return m.training and m.dropout > 0


@formula(
    nn.MultiheadAttention,
    candidates=_candidates,
    refuses=_refuses,
    replays=_drops,
    postponed=True,
)
def attention(call: Call) -> dict[str, Part]:
    """Differentiate the middle of the layer, then read off four linear layers."""
    m, given = call.module, call.arguments
    assert isinstance(m, nn.MultiheadAttention)
    sources = [given[name] for name in ("query", "key", "value")]
    same = all(_same(sources[0], x) for x in sources[1:])
    sources = [x if m.batch_first else x.transpose(0, 1) for x in sources]
    dy, *d_shares = call.grads
    if dy is None:  # only the attention weights were used
        dy = torch.zeros_like(sources[0])
    elif not m.batch_first:
        dy = dy.transpose(0, 1)
    context, deltas = _middle(call, m, given, sources, dy, d_shares[0] if d_shares else None)

    xs, ds = ([wide(call.split(t, 1, ROWS)) for t in ts] for ts in (sources, deltas))
    a, b = (wide(call.split(t, 1, ROWS)) for t in (context, dy))
    return {
        **_in_projections(m, xs, ds, same),
        "in_proj_bias": Dense(torch.cat([d.sum(1) for d in ds], 1)),
        "out_proj.weight": outer(a, b, m.out_proj.weight),
        "out_proj.bias": Dense(b.sum(1)),
    }


def _same(x: Tensor, y: Tensor) -> bool:
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())


def _in_projections(
    m: nn.MultiheadAttention, xs: list[Tensor], ds: list[Tensor], same: bool
) -> dict[str, Part]:
    """Return the in-projections' parts: of one matrix, with one input or three, or of three matrices."""
    weight = m.in_proj_weight
    if weight is None:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        return {name: outer(x, d, getattr(m, name)) for name, x, d in zip(names, xs, ds, strict=True)}
    if same:
        return {"in_proj_weight": outer(xs[0], torch.cat(ds, 2), weight)}
    longest = max(x.shape[1] for x in xs)  # row blocks are groups; zeros where one has fewer tokens
    a, b = (torch.stack([F.pad(t, (0, 0, 0, longest - t.shape[1])) for t in ts], 1) for ts in (xs, ds))
    return {"in_proj_weight": Outer(a.to(b), b, weight.shape)}


def _middle(
    call: Call,
    m: nn.MultiheadAttention,
    given: dict[str, Any],
    sources: list[Tensor],
    dy: Tensor,
    d_shares: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Run the layer again; return the out-projection's input and the gradients at $q, k, v$."""
    replay = call.replay
    if replay is None and _drops(m):
        raise RuntimeError("attention with dropout needs the random state from before its forward pass")
    # the same mask is drawn only in the same precision; without one, half precision is left behind
    width = wide if replay is None else Tensor.detach
    if m.in_proj_weight is None:
        weights = [m.q_proj_weight, m.k_proj_weight, m.v_proj_weight]
    else:
        weights = list(m.in_proj_weight.chunk(3))
    biases = [None] * 3 if m.in_proj_bias is None else list(m.in_proj_bias.chunk(3))
    with torch.no_grad(), nullcontext() if replay is None else replay():
        leaves = [
            F.linear(width(x), width(w), None if b is None else width(b)).requires_grad_()
            for x, w, b in zip(sources, weights, biases, strict=True)
        ]
        with torch.enable_grad():
            context, shares = _attend(m, given, width(sources[0]).dtype, *leaves)
            out = F.linear(context, width(m.out_proj.weight.detach()))
        ends = [(out, dy)]
        if shares is not None and d_shares is not None:
            ends.append((shares, d_shares))
        return context.detach(), _backward(ends, leaves)


def _backward(ends: list[tuple[Tensor, Tensor]], leaves: list[Tensor]) -> list[Tensor]:
    """Take gradients back to the leaves; in float16 at a size that it can hold."""
    scale = torch.ones((), device=leaves[0].device)
    if ends[0][0].dtype == torch.float16:
        largest = torch.stack([wide(g).abs().max() for _, g in ends]).max()
        scale = torch.where(largest > 0, largest, 1)
    incoming = [(wide(g) / scale).to(y.dtype) for y, g in ends]
    grads = torch.autograd.grad([y for y, _ in ends], leaves, incoming, materialize_grads=True)
    return [wide(g) * scale for g in grads]


def _attend(
    m: nn.MultiheadAttention, given: dict[str, Any], dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the heads' outputs side by side, [N, T, E], and the attention weights where asked for."""
    dropout = m.dropout if m.training else 0.0
    q, k, v = (
        x.unflatten(2, (m.num_heads, -1)).transpose(1, 2) for x in (q, k, v)
    )  # [N, heads, T, E / heads]
    mask, causal = _mask(m, given, dtype, len(q))
    if not given["need_weights"]:
        if mask is not None:
            mask = mask[None] if len(mask) == 1 else mask.unflatten(0, q.shape[:2])
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal).transpose(1, 2).flatten(2), None
    q3, k3, v3 = (x.flatten(0, 1) for x in (q * sqrt(1 / q.shape[3]), k, v))
    scores = torch.bmm(q3, k3.mT) if mask is None else torch.baddbmm(mask, q3, k3.mT)
    shares = F.softmax(scores, dim=-1)
    if dropout > 0:
        shares = F.dropout(shares, dropout)
    context = torch.bmm(shares, v3).unflatten(0, q.shape[:2]).transpose(1, 2).flatten(2)
    shares = shares.unflatten(0, q.shape[:2])
    return context, shares.mean(1) if given["average_attn_weights"] else shares


def _mask(
    m: nn.MultiheadAttention, given: dict[str, Any], dtype: torch.dtype, examples: int
) -> tuple[Tensor | None, bool]:
    """Join both masks into one to be added, [1 or N·heads, 1 or T, S]; or None, and whether it is causal."""

    def additive(mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.is_floating_point():
            return None if mask is None else mask.to(dtype)
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)

    padding = additive(given["key_padding_mask"])
    if given["is_causal"] and padding is None and not given["need_weights"]:
        return None, True
    mask = additive(given["attn_mask"])
    if mask is not None and mask.ndim == 2:
        mask = mask[None]
    if padding is None:
        return mask, False
    padding = padding[:, None, None].expand(examples, m.num_heads, 1, -1).flatten(0, 1)
    return padding if mask is None else mask + padding, False
