"""Problems whose model returns several tensors, whose losses are coupled, or that recompute activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cockpit.testing.problem import Batch, Problem, cross_entropy, features


class TwoHeads(nn.Module):
    """A shared layer with a classifier and a regression head, returned as a tuple or a dict."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named = named
        self.body, self.label, self.value = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | dict[str, Tensor]:
        """Logits [N, C] and values [N]."""
        h = torch.tanh(self.body(x))
        logits, value = self.label(h), self.value(h).squeeze(1)
        return {"logits": logits, "value": value} if self.named else (logits, value)


class OwnLoss(nn.Module):
    """Returns its losses itself, as the models of Hugging Face do when they are given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Losses [N] and logits [N, C]."""
        logits = self.head(F.relu(self.body(x)))
        return {"losses": cross_entropy(logits, labels), "logits": logits}


class Checkpointed(nn.Module):
    """The activations of the middle layers are computed a second time in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inp, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.mid = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        h = checkpoint(self.mid, torch.tanh(self.inp(x)), use_reentrant=self.reentrant)
        logits: Tensor = self.out(h)
        return logits


class Siamese(nn.Module):
    """One encoder for two views of each example; returns both, normalised, [N, 2, d]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Embeddings of both views."""
        return F.normalize(torch.stack([self.encoder(first), self.encoder(second)], 1), dim=-1)


def info_nce(views: Tensor, _: Tensor) -> Tensor:
    """InfoNCE: each first view must find its second view among all of the batch, [N]."""
    similarity = views[:, 0] @ views[:, 1].T / 0.5
    return F.cross_entropy(similarity, torch.arange(len(views), device=views.device), reduction="none")


def two_views(n: int, g: torch.Generator) -> Batch:
    """Inputs [N, 6], the same with noise, and labels that nobody needs."""
    x = torch.randn(n, 6, generator=g)
    return (x, x + 0.5 * torch.randn(n, 6, generator=g)), torch.zeros(n)


def with_labels(n: int, g: torch.Generator) -> Batch:
    """The labels are an input, too."""
    (x,), y = features(6)(n, g)
    return (x, y), y


def both(outputs: tuple[Tensor, Tensor] | dict[str, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy of the first head plus the squared error of the second."""
    logits, value = outputs.values() if isinstance(outputs, dict) else outputs
    return cross_entropy(logits, targets) + 0.5 * (value - targets).square()


def own(outputs: dict[str, Tensor], _: Tensor) -> Tensor:
    """The losses that the model computed."""
    return outputs["losses"]


PROBLEMS = (
    Problem("tuple_outputs", lambda: TwoHeads(False), features(6), both, outputs=False),
    Problem("dict_outputs", lambda: TwoHeads(True), features(6), both, outputs=False),
    Problem("own_loss", OwnLoss, with_labels, own, outputs=False),
    Problem("checkpoint", lambda: Checkpointed(False), features(6), cross_entropy),
    Problem(
        "checkpoint_reentrant",
        lambda: Checkpointed(True),
        features(6),
        cross_entropy,
        double_backward=False,
        grad_calls=False,
    ),
    Problem(
        "contrastive", Siamese, two_views, info_nce, coupled=True, note="losses of a batch share examples"
    ),
)
