"""GPT-2 of 124 million parameters (Radford et al., 2019): 12 blocks of width 768, tied embedding, 1024 tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.problems.problem import Problem, Scale

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 50257, 1024, 768, 12, 12


class Attention(nn.Module):
    """Causal attention of 12 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens."""
        n, t, _ = x.shape
        q, k, v = self.into(x).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, WIDTH))
        return found


class Block(nn.Module):
    """Attention and a dense layer, each behind a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.dense = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Add what both change."""
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.dense(self.norm2(x))
        return found


class GPT2(nn.Module):
    """Tokens [N, T] to logits [N, T, vocabulary]; the embedding is the last layer's weight too."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(scale.length or LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found: Tensor = self.head(self.norm(self.blocks(x)))
        return found


GPT = Problem(
    "gpt_124m",
    GPT2,
    lambda n, s, d: d.text(n, s.length or LENGTH, VOCABULARY, characters=False),
    8,
    loss="token_cross_entropy",
    adam=True,
    learning_rate=3e-4,
    autocast=True,
    heavy=True,
)
