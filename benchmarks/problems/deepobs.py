"""Six problems of DeepOBS (Schneider, Balles, Hennig, ICLR 2019), on which the paper measures its costs.

The learning rate is that of the paper's cost experiments, 1e-3 with plain SGD. TensorFlow's padding "same"
is written out with layers of its own, since its uneven sides are no setting of a PyTorch layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from benchmarks.problems.data import Batch, Data
from benchmarks.problems.problem import Problem, Scale

QUADRATIC = 100


def quadratic_deep(scale: Scale) -> nn.Module:
    """Return x ↦ Lᵀ(x − θ) with Q = LLᵀ, so that its mean square is (θ − x)ᵀQ(θ − x)/100; −θ is a bias."""
    random = np.random.RandomState(42)
    values = np.concatenate([random.uniform(0.0, 1.0, 90), random.uniform(30.0, 60.0, 10)])
    rotation = _rotation(QUADRATIC, random)
    hessian = rotation.T @ np.diag(values) @ rotation
    shift, scaling = nn.Linear(QUADRATIC, QUADRATIC), nn.Linear(QUADRATIC, QUADRATIC, bias=False)
    with torch.no_grad():
        shift.weight.copy_(torch.eye(QUADRATIC))
        shift.bias.fill_(-1.0)
        scaling.weight.copy_(torch.from_numpy(np.linalg.cholesky(hessian).T.copy()))
    shift.weight.requires_grad_(False)
    scaling.weight.requires_grad_(False)
    return nn.Sequential(shift, scaling)


def _rotation(n: int, random: np.random.RandomState) -> np.ndarray:
    """Return a random rotation by the subgroup algorithm (Diaconis and Shahshahani, 1987)."""
    angle = 2 * math.pi * random.uniform()
    r = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    for d in range(2, n):
        v = random.normal(size=d + 1)
        v /= np.linalg.norm(v)
        x = -v
        x[0] += 1.0
        x /= np.linalg.norm(x)
        larger = np.zeros((d + 1, d + 1))
        larger[0, 0], larger[1:, 1:] = 1.0, r
        r = larger - 2.0 * np.outer(x, x @ larger)
    return -r


def quadratic_batch(n: int, scale: Scale, data: Data) -> Batch:
    """Return draws of N(0, 0.6²), and zeros as targets."""
    drawn = np.random.RandomState(42).normal(0.0, 0.6, (1000, QUADRATIC)).astype(np.float32)
    return torch.from_numpy(np.resize(drawn, (n, QUADRATIC))), torch.zeros(n, QUADRATIC), "its own definition"


def mnist_logreg(scale: Scale) -> nn.Module:
    """Return logistic regression, from zeros."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def mnist_mlp(scale: Scale) -> nn.Module:
    """Return 784-1000-500-100-10 with ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    sizes = (784, 1000, 500, 100, 10)
    for k, (i, o) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] * (k > 0) + [nn.Linear(i, o)]
    model = nn.Sequential(*layers)
    _initialise(model, lambda w: nn.init.trunc_normal_(w, std=0.03, a=-0.06, b=0.06), 0.0)
    return model


def fmnist_2c2d(scale: Scale) -> nn.Module:
    """Return two convolutions and two dense layers."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )
    _initialise(model, lambda w: nn.init.trunc_normal_(w, std=0.05, a=-0.1, b=0.1), 0.05)
    return model


def cifar10_3c3d(scale: Scale) -> nn.Module:
    """Return three convolutions and three dense layers; 32 → 28 → 14 → 12 → 6 → 6 → 3 pixels."""
    pool = ((0, 1, 0, 1), 3, 2)
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), *_pool(*pool)),
        *(nn.Conv2d(64, 96, 3), nn.ReLU(), *_pool(*pool)),
        *(nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), *_pool(*pool)),
        *(nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    _initialise(model, lambda w: nn.init.xavier_normal_(w) if w.ndim > 2 else nn.init.xavier_uniform_(w), 0.0)
    return model


def cifar100_allcnnc(scale: Scale) -> nn.Module:
    """Return All-CNN-C: nine convolutions, and a mean over 6 × 6 pixels."""
    layers: list[nn.Module] = [nn.Dropout(0.2)]
    for inputs, outputs in ((3, 96), (96, 192)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [
            nn.ZeroPad2d((0, 1, 0, 1)),
            nn.Conv2d(outputs, outputs, 3, stride=2),
            nn.ReLU(),
            nn.Dropout(0.5),
        ]
    for inputs, outputs, kernel in ((192, 192, 3), (192, 192, 1), (192, 100, 1)):
        layers += [nn.Conv2d(inputs, outputs, kernel), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    _initialise(model, nn.init.xavier_normal_, 0.1)
    return model


def _pool(padding: tuple[int, int, int, int], size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.ZeroPad2d(padding), nn.MaxPool2d(size, stride)


def _initialise(model: nn.Module, weights: Callable[[torch.Tensor], object], bias: float) -> None:
    for p in model.parameters():
        if p.ndim > 1:
            weights(p)
        else:
            nn.init.constant_(p, bias)


PROBLEMS = (
    Problem("quadratic_deep", quadratic_deep, quadratic_batch, 128, loss="mse"),
    Problem("mnist_logreg", mnist_logreg, lambda n, s, d: d.grey("mnist", n), 128),
    Problem("mnist_mlp", mnist_mlp, lambda n, s, d: d.grey("mnist", n), 128),
    Problem("fmnist_2c2d", fmnist_2c2d, lambda n, s, d: d.grey("fmnist", n), 128),
    Problem("cifar10_3c3d", cifar10_3c3d, lambda n, s, d: d.colour("cifar10", n), 128),
    Problem(
        "cifar100_allcnnc",
        cifar100_allcnnc,
        lambda n, s, d: d.colour("cifar100", n, classes=100),
        256,
        heavy=True,
    ),
)
