"""Problems on sequences of tokens: where the batch axis lies, embeddings, tied weights, a small GPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.testing.problem import (
    Batch,
    Problem,
    cross_entropy,
    features,
    text,
    token_cross_entropy,
    words,
)


class Tokens(nn.Module):
    """Linear layers and LayerNorm on tokens [N, T, d], or [T, N, d] with ``time`` 0, averaged over time."""

    def __init__(self, time: int = 1) -> None:
        super().__init__()
        self.time = time
        self.inp, self.norm, self.out = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.out(F.gelu(self.norm(self.inp(x))))
        return logits.mean(self.time)


class Flattened(nn.Module):
    """Tokens [N, T, d] seen by the layers as N·T rows, as most language models do before their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        rows = torch.tanh(self.inp(x.reshape(-1, x.shape[-1])))
        logits: Tensor = self.out(rows)
        return logits.view(*x.shape[:2], 3).mean(1)


class Pooled(nn.Module):
    """The mean of the embeddings of a few words; ``bag`` uses the fused layer."""

    def __init__(self, bag: bool = False) -> None:
        super().__init__()
        self.emb = nn.EmbeddingBag(12, 6, mode="mean") if bag else nn.Embedding(12, 6, padding_idx=0)
        self.bag = bag
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [N, C]."""
        pooled = self.emb(tokens) if self.bag else self.emb(tokens).mean(1)
        logits: Tensor = self.head(torch.tanh(pooled))
        return logits


class Tied(nn.Module):
    """The embedding is the output layer: a parameter shared by two modules, or a product in ``forward``."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(9, 6)
        self.mid = nn.Linear(6, 6)
        self.head = None if functional else nn.Linear(6, 9, bias=False)
        if self.head is not None:
            self.head.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [N, T, V]."""
        h = torch.tanh(self.mid(self.emb(tokens)))
        return h @ self.emb.weight.T if self.head is None else self.head(h)


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each behind a LayerNorm and with a skip connection."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, h: Tensor) -> Tensor:
        """The stream [N, T, d] after the block."""
        q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = h + self.down(F.gelu(self.up(self.norm2(h))))
        return out


class GPT(nn.Module):
    """A decoder-only transformer: token and position tables, one block, tied output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.wpe = nn.Parameter(0.1 * torch.randn(6, 8))
        self.block = Block(8, 2)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [N, T, V] of the token that follows."""
        logits: Tensor = self.head(self.norm(self.block(self.wte(tokens) + self.wpe[: tokens.shape[1]])))
        return logits


def columns(n: int, g: torch.Generator) -> Batch:
    """Tokens [T, N, d] with T = 4."""
    return (torch.randn(4, n, 5, generator=g),), torch.randint(3, (n,), generator=g)


def square(n: int, g: torch.Generator) -> Batch:
    """Tokens [T, N, d] with T = N: the shape does not say which axis is the batch."""
    return (torch.randn(n, n, 5, generator=g),), torch.randint(3, (n,), generator=g)


PROBLEMS = (
    Problem("linear_3d", Tokens, features(4, 5), cross_entropy),
    Problem("batch_second", lambda: Tokens(0), columns, cross_entropy, axes=(1,)),
    Problem("batch_second_square", lambda: Tokens(0), square, cross_entropy, axes=(1,), note="T = N"),
    Problem("flattened_tokens", Flattened, features(4, 5), cross_entropy),
    Problem("embedding", Pooled, words(5, 12), cross_entropy, note="padding_idx 0, repeated words"),
    Problem("embedding_bag", lambda: Pooled(bag=True), words(5, 12), cross_entropy, double_backward=False),
    Problem("tied_modules", Tied, text(4, 9), token_cross_entropy),
    Problem("tied_functional", lambda: Tied(functional=True), text(4, 9), token_cross_entropy),
    Problem("gpt", GPT, text(6, 11), token_cross_entropy, double_backward=False, note="fused attention"),
)
