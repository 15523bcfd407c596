"""GPT-2 of 124 million parameters (Radford et al., 2019), and the same network in small, on characters.

The embedding is tied to the last layer. The small one is there for a CPU, whose bfloat16 is slower than float32: it
runs without autocast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.problems.data import Batch, Data
from benchmarks.problems.problem import Problem, Scale
from benchmarks.problems.recurrent import SYMBOLS


@dataclass(frozen=True)
class Sizes:
    """What a GPT-2 is made of: tokens there are and that it sees, width, heads, blocks."""

    vocabulary: int
    length: int
    width: int
    heads: int
    depth: int


LARGE = Sizes(vocabulary=50257, length=1024, width=768, heads=12, depth=12)
SMALL = Sizes(vocabulary=SYMBOLS, length=128, width=128, heads=4, depth=4)


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens."""
        n, t, width = x.shape
        q, k, v = self.into(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return found


class Block(nn.Module):
    """Attention and a dense layer, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add what both change."""
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.dense(self.norm2(x))
        return found


class GPT2(nn.Module):
    """Tokens [N, T] to logits [N, T, vocabulary]; the embedding is the last layer's weight too."""

    def __init__(self, scale: Scale, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(scale.length or sizes.length, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes.width, sizes.heads) for _ in range(sizes.depth)))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found: Tensor = self.head(self.norm(self.blocks(x)))
        return found


def _batch(n: int, scale: Scale, data: Data, sizes: Sizes) -> Batch:
    """Return stretches of text; a vocabulary below that of bytes is one of characters."""
    return data.text(n, scale.length or sizes.length, sizes.vocabulary, characters=sizes.vocabulary < 256)


PROBLEMS = (
    Problem(
        "gpt_char",
        partial(GPT2, sizes=SMALL),
        partial(_batch, sizes=SMALL),
        32,
        loss="token_cross_entropy",
        adam=True,
        learning_rate=3e-4,
    ),
    Problem(
        "gpt_124m",
        partial(GPT2, sizes=LARGE),
        partial(_batch, sizes=LARGE),
        8,
        loss="token_cross_entropy",
        adam=True,
        learning_rate=3e-4,
        autocast=True,
        heavy=True,
    ),
)
