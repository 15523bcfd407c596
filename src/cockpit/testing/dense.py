"""Problems made of linear layers: the plain ones, their losses, and what may stand between the layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.testing.problem import Batch, Problem, cross_entropy, features, squared_error


class Residual(nn.Module):
    """Two layers with a skip connection around the second, functional activations."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.mid = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        h = F.gelu(self.inp(x))
        h = h + F.silu(self.mid(h))
        logits: Tensor = self.out(h)
        return logits


class Interaction(nn.Module):
    """A bilinear layer over two views of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 5)
        self.pair = nn.Bilinear(4, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C]."""
        logits: Tensor = self.pair(torch.tanh(self.left(x)), torch.tanh(self.right(x)))
        return logits


def mlp(activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0, outputs: int = 3) -> nn.Sequential:
    """Three linear layers, 6-8-8-outputs."""
    drop = [nn.Dropout(dropout)] if dropout else []
    hidden = [nn.Linear(6, 8), activation(), *drop, nn.Linear(8, 8), activation(), *drop]
    return nn.Sequential(*hidden, nn.Linear(8, outputs))


def logreg() -> nn.Module:
    """Softmax regression that starts at zero, where everything is known in closed form."""
    layer = nn.Linear(6, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def frozen() -> nn.Module:
    """The first layer and one bias cannot be trained."""
    net = mlp()
    for name in ("0.weight", "0.bias", "2.bias"):
        net.get_parameter(name).requires_grad_(False)
    return net


def weight_normed() -> nn.Module:
    """Weights as length times direction."""
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(6, 8)), nn.Tanh(), norm(nn.Linear(8, 3), dim=1))


def regression(n: int, g: torch.Generator) -> Batch:
    """Inputs [N, 6] and four noisy linear functions of them."""
    x = torch.randn(n, 6, generator=g)
    return (x,), x[:, :4] * 1.4 + torch.randn(n, 4, generator=g)


def labels(n: int, g: torch.Generator) -> Batch:
    """Inputs [N, 6] and four yes-or-no labels each."""
    return (torch.randn(n, 6, generator=g),), torch.rand(n, 4, generator=g).round()


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy, averaged over the labels of an example."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def class_weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy times a fixed weight of the true class, one class counting nothing."""
    weights = outputs.new_tensor([2.0, 0.5, 0.0])
    return F.cross_entropy(outputs, targets, weight=weights, reduction="none")


PROBLEMS = (
    Problem("mlp", mlp, features(6), cross_entropy),
    Problem(
        "mlp_tanh", lambda: mlp(nn.Tanh), features(6), cross_entropy, note="diag_h differs from the GGN's"
    ),
    Problem("mlp_dropout", lambda: mlp(dropout=0.3), features(6), cross_entropy, random=True),
    Problem("logreg", logreg, features(6), cross_entropy),
    Problem("regression", lambda: mlp(nn.Tanh, outputs=4), regression, squared_error),
    Problem("least_squares", lambda: nn.Linear(6, 4), regression, squared_error),
    Problem("binary_labels", lambda: mlp(nn.ELU, outputs=4), labels, logistic),
    Problem(
        "class_weights", mlp, features(6), class_weighted, note="a class of weight 0: its gradients vanish"
    ),
    Problem("residual", Residual, features(6), cross_entropy),
    Problem("prelu", lambda: mlp(nn.PReLU), features(6), cross_entropy),
    Problem("bilinear", Interaction, features(6), cross_entropy),
    Problem("weight_norm", weight_normed, features(6), cross_entropy),
    Problem("frozen", frozen, features(6), cross_entropy),
    Problem("no_bias", lambda: nn.Linear(6, 3, bias=False), features(6), cross_entropy),
)
