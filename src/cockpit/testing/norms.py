"""Problems with normalisation layers, over one example's features or over the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit.testing.problem import Problem, cross_entropy, features


class RMSNorm(nn.Module):
    """The common handwritten form: x / rms(x) times a learned scale."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input, same shape."""
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.scale


def between(*norm: nn.Module) -> nn.Module:
    """Two linear layers, 6-8-3, around a normalisation."""
    return nn.Sequential(nn.Linear(6, 8), *norm, nn.Tanh(), nn.Linear(8, 3))


def images(norm: nn.Module) -> nn.Module:
    """A convolution, a normalisation of its four channels, and a linear head."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def settled(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """BatchNorm in evaluation mode, with running statistics that are not trivial."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm.eval()


IMAGE = features(2, 4, 4)
COUPLED = "batch statistics: the gradient of one loss runs through all examples"
PROBLEMS = (
    Problem("layer_norm", lambda: between(nn.LayerNorm(8)), features(6), cross_entropy),
    Problem("rms_norm", lambda: between(nn.RMSNorm(8)), features(6), cross_entropy),
    Problem("rms_norm_own", lambda: between(RMSNorm(8)), features(6), cross_entropy),
    Problem("group_norm", lambda: images(nn.GroupNorm(2, 4)), IMAGE, cross_entropy),
    Problem("instance_norm", lambda: images(nn.InstanceNorm2d(4, affine=True)), IMAGE, cross_entropy),
    Problem("layer_norm_2d", lambda: images(nn.LayerNorm([4, 2, 2])), IMAGE, cross_entropy),
    Problem("batch_norm_eval", lambda: images(settled(nn.BatchNorm2d(4))), IMAGE, cross_entropy),
    Problem("batch_norm_eval_1d", lambda: between(settled(nn.BatchNorm1d(8))), features(6), cross_entropy),
    Problem(
        "batch_norm_train",
        lambda: images(nn.BatchNorm2d(4)),
        IMAGE,
        cross_entropy,
        exact=False,
        coupled=True,
        note=COUPLED,
    ),
)
