"""Problems with the attention and transformer layers of torch, and with raw parameters as tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.testing.problem import Problem, cross_entropy, features


class SelfAttention(nn.Module):
    """``nn.MultiheadAttention`` on tokens [N, T, d]; with ``first`` false it is given [T, N, d]."""

    def __init__(self, first: bool, weights: bool, bias: bool = True) -> None:
        super().__init__()
        self.first, self.weights = first, weights
        self.attention = nn.MultiheadAttention(8, 2, batch_first=first, bias=bias)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C], averaged over time."""
        x = x if self.first else x.transpose(0, 1)
        mixed, _ = self.attention(x, x, x, need_weights=self.weights)
        logits: Tensor = self.head(mixed).mean(1 if self.first else 0)
        return logits


class CrossAttention(nn.Module):
    """Queries [N, 3, 8] look at a memory of another length and width."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=5, batch_first=True, add_bias_kv=True)
        self.queries = nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] from tokens [N, T, 5]."""
        mixed, _ = self.attention(torch.tanh(self.queries(x[:, :3])), x, x)
        logits: Tensor = self.head(mixed.mean(1))
        return logits


class Encoder(nn.Module):
    """One ``nn.TransformerEncoderLayer`` and a linear head on the mean over time."""

    def __init__(self, dropout: float = 0.0, norm_first: bool = False) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            8, 2, dim_feedforward=12, dropout=dropout, batch_first=True, norm_first=norm_first
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.head(self.layer(x).mean(1))
        return logits


class Decoder(nn.Module):
    """One ``nn.TransformerDecoderLayer`` [T, N, d]: the last two tokens look at the earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, dim_feedforward=12, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] from tokens [N, T, 8]."""
        x = x.transpose(0, 1)
        logits: Tensor = self.head(self.layer(x[-2:], x[:-2]).mean(0))
        return logits


class ClassToken(nn.Module):
    """A vision transformer's front: class token and positional table as raw parameters, a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 5, 8))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.patches = nn.Linear(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] from patches [N, 4, 5]."""
        h = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x)], 1) + self.positions
        mixed, _ = self.attention(h, h, h)
        logits: Tensor = self.scale * self.head(mixed[:, 0])
        return logits


TOKENS = features(4, 8)
FUSED = "fused attention cannot be differentiated twice"
PROBLEMS = (
    Problem("attention", lambda: SelfAttention(True, True), TOKENS, cross_entropy),
    Problem(
        "attention_fused",
        lambda: SelfAttention(True, False),
        TOKENS,
        cross_entropy,
        double_backward=False,
        note=FUSED,
    ),
    Problem("attention_second", lambda: SelfAttention(False, True, bias=False), TOKENS, cross_entropy),
    Problem("attention_cross", CrossAttention, features(5, 5), cross_entropy),
    Problem("transformer_encoder", Encoder, TOKENS, cross_entropy, double_backward=False, note=FUSED),
    Problem("transformer_dropout", lambda: Encoder(0.1, True), TOKENS, cross_entropy, random=True),
    Problem("transformer_decoder", Decoder, features(5, 8), cross_entropy, double_backward=False, note=FUSED),
    Problem("class_token", ClassToken, features(4, 5), cross_entropy),
)
