r"""Attention, twice: what a product with the Hessian makes of vectors for its gradients, without matrices of scores.

With $S = s\,QK^\top$, $P = \mathrm{softmax}(S)$, $dP = dO\,V^\top$ and $D_i = \langle P_i, dP_i\rangle$ the gradients
are $dS = P \odot (dP - D)$, $dQ = s\,dS\,K$, $dK = s\,dS^\top Q$, $dV = P^\top dO$. Vectors $u$ for these three give

.. math::
    A &= s\,(u_Q K^\top + Q\,u_K^\top), \quad B = dO\,u_V^\top, \quad a_i = \langle P_i, A_i\rangle \\
    E &= P \odot (A - a), \quad G = A \odot (dP - D) - dP\,a + B \\
    T &= P \odot (G - \langle P, G\rangle)

and the derivatives $s\,(T K + dS\,u_K)$ by Q, $s\,(T^\top Q + dS^\top u_Q)$ by K, $E^\top dO$ by V and
$E V + P\,u_V$ by dO. Scores are formed anew, tile by tile: in one pass that sums over the keys of each query, in one
that adds up what belongs to queries, and in one for keys (after Dao et al., "FlashAttention", 2022). So memory grows
with the length of a sequence, not with its square.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton evaluates annotations of kernels' parameters; those of tensors stay out.)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cockpit.engine.kernels.language import INTERPRETED, jit, on_device, runs_on, tl
from cockpit.engine.kernels.products import rounds

DEEPEST = {torch.float32: 64, torch.bfloat16: 128, torch.float16: 128}
"""Numbers in a head, at most: there are not registers for more."""
MOST = 2**16 - 1
"""Heads of all examples, at most."""

if INTERPRETED:  # which does not multiply bfloat16

    @jit()
    def _dot(x, y, total, PRECISION: tl.constexpr):
        """Return the product of two tiles, added to a total in float32."""
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)


else:

    @jit()
    def _dot(x, y, total, PRECISION: tl.constexpr):
        """Return the product of two tiles, added to a total in float32."""
        return tl.dot(x, y, total, input_precision=PRECISION)


@jit()
def _tile(x, row, rows, depth, lane):
    """Load rows of a matrix; zeros beyond it."""
    there = (row < rows)[:, None] & (lane < depth)[None, :]
    return tl.load(x + row[:, None] * depth + lane[None, :], mask=there, other=0.0)


@jit()
def _scores(q, o, uq, k, v, uk, left, right, there, factor, PRECISION: tl.constexpr):
    """Return S, dP, A and B of a tile, or all of them turned if keys change places with queries.

    Where nobody looks, S is −∞.
    """
    zeros = tl.zeros([q.shape[0], k.shape[0]], tl.float32)
    s = _dot(q, tl.trans(k), zeros, PRECISION) * factor
    dp = _dot(o, tl.trans(v), zeros, PRECISION)
    a = _dot(q, tl.trans(uk), _dot(uq, tl.trans(k), zeros, PRECISION), PRECISION) * factor
    b = _dot(left, tl.trans(right), zeros, PRECISION)
    return tl.where(there, s, float("-inf")), dp, a, b


@jit()
def _weights(s, dp, a, b, lse, at_d, at_a, at_g):
    """Return P, dS, E and T of a tile from the sums over the keys of its queries."""
    p, away = tl.exp(s - lse), dp - at_d
    t = p * (a * away - dp * at_a + b - at_g)
    return p, p * away, p * (a - at_a), t


@jit()
def _sums_at(sums, size, i, queries):
    """Load the sums over the keys of some queries: log Σ exp S, D, a and ⟨P, G⟩."""
    there = i < queries
    lse, at_d = tl.load(sums + i, mask=there, other=0.0), tl.load(sums + size + i, mask=there, other=0.0)
    at_a = tl.load(sums + 2 * size + i, mask=there, other=0.0)
    return lse, at_d, at_a, tl.load(sums + 3 * size + i, mask=there, other=0.0)


@jit()
def _added(x, y, total, PRECISION: tl.constexpr):
    """Add the product of a tile in float32 and one of the inputs' type, of which nothing but its last bits is lost."""
    if y.dtype == tl.bfloat16:
        high = x.to(tl.bfloat16)
        total = _dot(high, y, total, PRECISION)
        return _dot((x - high.to(tl.float32)).to(tl.bfloat16), y, total, PRECISION)
    return _dot(x, y.to(tl.float32), total, PRECISION)


@jit("queries", "keys", "factor")
def _summed(
    q,
    k,
    v,
    o,
    uq,
    uk,
    uv,
    sums,
    queries,
    keys,
    depth,
    factor,
    M: tl.constexpr,
    N: tl.constexpr,
    DEPTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    head, lane = tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    i = tl.program_id(0) * M + tl.arange(0, M)
    of_q, of_k = head * queries * depth, head * keys * depth
    own_q, own_o = _tile(q + of_q, i, queries, depth, lane), _tile(o + of_q, i, queries, depth, lane)
    own_u = _tile(uq + of_q, i, queries, depth, lane)
    greatest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    of_d = tl.zeros([M], tl.float32)
    of_a = tl.zeros([M], tl.float32)
    of_ad = tl.zeros([M], tl.float32)
    of_b = tl.zeros([M], tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * M, keys) if CAUSAL else keys
    for start in range(0, end, N):
        j = start + tl.arange(0, N)
        there = (j < keys)[None, :] & (i < queries)[:, None]
        if CAUSAL:
            there = there & (j[None, :] <= i[:, None])
        s, dp, a, b = _scores(
            own_q,
            own_o,
            own_u,
            _tile(k + of_k, j, keys, depth, lane),
            _tile(v + of_k, j, keys, depth, lane),
            _tile(uk + of_k, j, keys, depth, lane),
            own_o,
            _tile(uv + of_k, j, keys, depth, lane),
            there,
            factor,
            PRECISION,
        )
        most = tl.maximum(greatest, tl.max(s, axis=1))
        most = tl.where(i < queries, most, 0.0)
        p, before = tl.exp(s - most[:, None]), tl.exp(greatest - most)
        total = total * before + tl.sum(p, axis=1)
        of_d = of_d * before + tl.sum(p * dp, axis=1)
        of_a = of_a * before + tl.sum(p * a, axis=1)
        of_ad = of_ad * before + tl.sum(p * a * dp, axis=1)
        of_b = of_b * before + tl.sum(p * b, axis=1)
        greatest = most
    at, size = sums + head * queries + i, tl.num_programs(1).to(tl.int64) * queries
    total = tl.where(i < queries, total, 1.0)
    at_d, at_a = of_d / total, of_a / total
    tl.store(at, greatest + tl.log(total), mask=i < queries)
    tl.store(at + size, at_d, mask=i < queries)
    tl.store(at + 2 * size, at_a, mask=i < queries)
    tl.store(at + 3 * size, (of_ad + of_b) / total - 2 * at_a * at_d, mask=i < queries)


@jit("queries", "keys", "factor")
def _by_queries(
    q,
    k,
    v,
    o,
    uq,
    uk,
    uv,
    sums,
    by_q,
    by_o,
    queries,
    keys,
    depth,
    factor,
    M: tl.constexpr,
    N: tl.constexpr,
    DEPTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    head, lane = tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    i = tl.program_id(0) * M + tl.arange(0, M)
    of_q, of_k = head * queries * depth, head * keys * depth
    own_q, own_o = _tile(q + of_q, i, queries, depth, lane), _tile(o + of_q, i, queries, depth, lane)
    own_u = _tile(uq + of_q, i, queries, depth, lane)
    size = tl.num_programs(1).to(tl.int64) * queries
    lse, at_d, at_a, at_g = _sums_at(sums + head * queries, size, i, queries)
    total_q = tl.zeros([M, DEPTH], tl.float32)
    total_o = tl.zeros([M, DEPTH], tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * M, keys) if CAUSAL else keys
    for start in range(0, end, N):
        j = start + tl.arange(0, N)
        there = (j < keys)[None, :] & (i < queries)[:, None]
        if CAUSAL:
            there = there & (j[None, :] <= i[:, None])
        here_k, here_v = _tile(k + of_k, j, keys, depth, lane), _tile(v + of_k, j, keys, depth, lane)
        here_uk, here_uv = _tile(uk + of_k, j, keys, depth, lane), _tile(uv + of_k, j, keys, depth, lane)
        s, dp, a, b = _scores(
            own_q, own_o, own_u, here_k, here_v, here_uk, own_o, here_uv, there, factor, PRECISION
        )
        p, ds, e, t = _weights(s, dp, a, b, lse[:, None], at_d[:, None], at_a[:, None], at_g[:, None])
        total_q = _added(t, here_k, total_q, PRECISION)
        total_q = _added(ds, here_uk, total_q, PRECISION)
        total_o = _added(e, here_v, total_o, PRECISION)
        total_o = _added(p, here_uv, total_o, PRECISION)
    there = (i < queries)[:, None] & (lane < depth)[None, :]
    place = of_q + i[:, None] * depth + lane[None, :]
    tl.store(by_q + place, (total_q * factor).to(by_q.dtype.element_ty), mask=there)
    tl.store(by_o + place, total_o.to(by_o.dtype.element_ty), mask=there)


@jit("queries", "keys", "factor")
def _by_keys(
    q,
    k,
    v,
    o,
    uq,
    uk,
    uv,
    sums,
    by_k,
    by_v,
    queries,
    keys,
    depth,
    factor,
    M: tl.constexpr,
    N: tl.constexpr,
    DEPTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    head, lane = tl.program_id(1).to(tl.int64), tl.arange(0, DEPTH)
    j = tl.program_id(0) * N + tl.arange(0, N)
    of_q, of_k = head * queries * depth, head * keys * depth
    own_k, own_v = _tile(k + of_k, j, keys, depth, lane), _tile(v + of_k, j, keys, depth, lane)
    own_uk, own_uv = _tile(uk + of_k, j, keys, depth, lane), _tile(uv + of_k, j, keys, depth, lane)
    size = tl.num_programs(1).to(tl.int64) * queries
    total_k = tl.zeros([N, DEPTH], tl.float32)
    total_v = tl.zeros([N, DEPTH], tl.float32)
    begin = tl.program_id(0) * N // M * M if CAUSAL else 0
    for start in range(begin, queries, M):
        i = start + tl.arange(0, M)
        there = (j < keys)[:, None] & (i < queries)[None, :]
        if CAUSAL:
            there = there & (j[:, None] <= i[None, :])
        here_q, here_o = _tile(q + of_q, i, queries, depth, lane), _tile(o + of_q, i, queries, depth, lane)
        here_u = _tile(uq + of_q, i, queries, depth, lane)
        lse, at_d, at_a, at_g = _sums_at(sums + head * queries, size, i, queries)
        s, dp, a, b = _scores(
            own_k, own_v, own_uk, here_q, here_o, here_u, own_uv, here_o, there, factor, PRECISION
        )
        _, ds, e, t = _weights(s, dp, a, b, lse[None, :], at_d[None, :], at_a[None, :], at_g[None, :])
        total_k = _added(t, here_q, total_k, PRECISION)
        total_k = _added(ds, here_u, total_k, PRECISION)
        total_v = _added(e, here_o, total_v, PRECISION)
    there = (j < keys)[:, None] & (lane < depth)[None, :]
    place = of_k + j[:, None] * depth + lane[None, :]
    tl.store(by_k + place, (total_k * factor).to(by_k.dtype.element_ty), mask=there)
    tl.store(by_v + place, total_v.to(by_v.dtype.element_ty), mask=there)


def takes(query: Tensor, key: Tensor, value: Tensor, result: Tensor) -> bool:
    """Say whether there are kernels for these queries, keys, values and gradients of the result, [..., T, D]."""
    tensors = (query, key, value, result)
    alike = query.dtype in DEEPEST and len({(t.dtype, t.device) for t in tensors}) == 1
    heads = len({(t.shape[:-2], t.shape[-1]) for t in tensors}) == 1 and query.ndim > 2
    heads = heads and query.shape[:-2].numel() <= MOST
    fits = key.shape == value.shape and query.shape == result.shape
    fits = fits and query.shape[-1] <= DEEPEST.get(query.dtype, 0)
    return alike and heads and fits and all(t.numel() for t in tensors) and runs_on(query)


def attention_twice(
    vectors: tuple[Tensor, Tensor, Tensor],
    given: tuple[Tensor, Tensor, Tensor, Tensor],
    causal: bool,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the derivatives by query, key, value and the result's gradient of what the gradients make of vectors.

    Args:
        vectors: for the gradients by query, key and value.
        given: query, key, value and the result's gradient.
        causal: whether queries look at no later keys.
        factor: of the scores.
    """
    q, k, v, o, uq, uk, uv = (t.detach().contiguous() for t in (*given, *vectors))
    queries, depth, keys = *q.shape[-2:], k.shape[-2]
    heads = q.numel() // (queries * depth)
    sums = torch.empty(4, heads, queries, dtype=torch.float32, device=q.device)
    by_q, by_k, by_v, by_o = (torch.empty_like(t) for t in (q, k, v, o))
    single = q.dtype is torch.float32
    m, n = (32, 32) if single else (64, 64)
    precision = "tf32x3" if single and not rounds(torch.backends.cuda.matmul) else "tf32"
    options: dict[str, Any] = {
        "M": m,
        "N": n,
        "DEPTH": max(16, 1 << (depth - 1).bit_length()),
        "CAUSAL": causal,
    }
    options |= {
        "PRECISION": precision,
        "num_warps": 4 if single else 8,
        "num_stages": 2,
        "enable_fp_fusion": True,
    }
    seen, sizes = (q, k, v, o, uq, uk, uv, sums), (queries, keys, depth, float(factor))
    with on_device(q):
        _summed[(-(-queries // m), heads)](*seen, *sizes, **options)
        _by_queries[(-(-queries // m), heads)](*seen, by_q, by_o, *sizes, **options)
        _by_keys[(-(-keys // n), heads)](*seen, by_k, by_v, *sizes, **options)
    return by_q, by_k, by_v, by_o
