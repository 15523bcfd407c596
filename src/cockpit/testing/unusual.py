"""Problems whose examples lie where nobody expects them, or whose weights are not what they seem."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from cockpit.testing.problem import Batch, Problem, cross_entropy, features


class Mixer(nn.Module):
    """A linear layer along the tokens (its last axis is not the features) and one along the features."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.features, self.norm = nn.Linear(5, 5), nn.Linear(4, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        logits: Tensor = self.head((x + F.gelu(self.features(x))).mean(1))
        return logits


class Views(nn.Module):
    """Two views of every example one after the other in the batch: example n is rows n and N + n."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        a, b = self.encoder(torch.cat([x, x.flip(1)])).chunk(2)
        logits: Tensor = a * b
        return logits


class Backwards(nn.Module):
    """The batch in reverse order inside the first layer: row n is not example n, though the shapes say so."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        order = torch.arange(len(x), device=x.device).flip(0)
        logits: Tensor = self.head(torch.tanh(self.body(x[order]))[order])
        return logits


class Windows(nn.Module):
    """Attention within windows of an image: windows are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.head = nn.Linear(4, 12), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] of images [N, 4, 4, d]."""
        n = len(x)
        windows = self.norm(x).view(n, 2, 2, 2, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(n * 4, 4, 4)
        q, k, v = self.qkv(windows).chunk(3, -1)
        logits: Tensor = self.head(F.scaled_dot_product_attention(q, k, v).reshape(n, 16, 4).mean(1))
        return logits


class OneByOne(nn.Module):
    """A Python loop over the examples: the layers never see a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(2, 3, 2), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        return torch.stack([self.head(self.conv(example).flatten()) for example in x])


class Hypernetwork(nn.Module):
    """The weights of the first layer are computed from a learned code, without any example."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(5))
        self.weights, self.head = nn.Linear(5, 12), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.head(torch.tanh(x @ self.weights(self.code).view(4, 3)))
        return logits


class Queries(nn.Module):
    """Attention whose queries are a view of a parameter: the layer's input moves with the optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 2, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        seen, _ = self.attention(self.queries.expand(len(x), -1, -1), x, x)
        logits: Tensor = self.head(seen.mean(1))
        return logits


class Autoencoder(nn.Module):
    """A variational autoencoder: draws from the global random stream, returns three tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(2, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction, mean and log-variance."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)), mean, log_variance


def evidence(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    """Negative evidence lower bound of every example."""
    x, mean, log_variance = outputs
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
    return (x - targets).square().sum(1) + divergence


def images(n: int, g: torch.Generator) -> Batch:
    """Vectors that are their own targets."""
    x = torch.randn(n, 5, generator=g)
    return (x,), x


def spectral() -> nn.Module:
    """A layer whose weight changes its state whenever it is looked at in training mode."""
    return nn.Sequential(spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


PROBLEMS = [
    Problem("mixer", Mixer, features(5, 4), cross_entropy, note="a layer along the tokens"),
    Problem("two_views", Views, features(4), cross_entropy, note="examples interleaved in the batch axis"),
    Problem("backwards", Backwards, features(4), cross_entropy, note="batch order changed on the way"),
    Problem("windows", Windows, features(4, 4, 4), cross_entropy, note="windows folded into the batch"),
    Problem("one_by_one", OneByOne, features(2, 4), cross_entropy, note="no batch axis anywhere"),
    Problem("hypernetwork", Hypernetwork, features(4), cross_entropy, note="weights computed by a layer"),
    Problem("queries", Queries, features(3, 4), cross_entropy, note="an input that is a parameter"),
    Problem(
        "autoencoder",
        Autoencoder,
        images,
        evidence,
        random=True,
        outputs=False,
        note="samples, three outputs",
    ),
    Problem("spectral_norm", spectral, features(4), cross_entropy, note="reading the weight changes it"),
]
