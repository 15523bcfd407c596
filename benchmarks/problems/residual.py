"""ResNet-18 and ResNet-50 (He et al., 2016), and their ResNet for CIFAR at its smallest; BatchNorm in training mode.

Images of 32 pixels get the stem for CIFAR (a 3 × 3 convolution, no pooling) and 10 classes; larger ones
that of ImageNet and 1000 classes.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from benchmarks.problems.data import Batch, Data
from benchmarks.problems.problem import Problem, Scale


class Block(nn.Module):
    """A residual block: two 3 × 3 convolutions, or 1 × 1, 3 × 3, 1 × 1 with four times the outputs (bottleneck)."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for i, o, kernel, step in shapes:
            layers += [nn.Conv2d(i, o, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block changes."""
        found: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return found


def resnet(scale: Scale, blocks: tuple[int, ...], bottleneck: bool, image: int, stem: int = 64) -> nn.Module:
    """Return a network with so many blocks in each stage; the first is as wide as the stem, each next one twice."""
    small = (scale.image or image) <= 64
    first = nn.Conv2d(3, stem, 3, 1, 1, bias=False) if small else nn.Conv2d(3, stem, 7, 2, 3, bias=False)
    layers: list[nn.Module] = [first, nn.BatchNorm2d(stem), nn.ReLU()]
    layers += [] if small else [nn.MaxPool2d(3, 2, 1)]
    inputs = stem
    for stage, count in enumerate(blocks):
        width = stem * 2**stage
        for k in range(count):
            layers.append(Block(inputs, width, 2 if stage and not k else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    classes = 10 if small else 1000
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _batch(n: int, scale: Scale, data: Data, image: int) -> Batch:
    size = scale.image or image
    return data.colour("cifar10", n, size, 10 if size <= 64 else 1000)


PROBLEMS = (
    Problem(
        "cifar10_resnet8",
        partial(resnet, blocks=(1, 1, 1), bottleneck=False, image=32, stem=16),
        partial(_batch, image=32),
        128,
        learning_rate=0.01,
    ),
    Problem(
        "resnet18",
        partial(resnet, blocks=(2, 2, 2, 2), bottleneck=False, image=32),
        partial(_batch, image=32),
        128,
        learning_rate=0.01,
        heavy=True,
    ),
    Problem(
        "resnet50",
        partial(resnet, blocks=(3, 4, 6, 3), bottleneck=True, image=224),
        partial(_batch, image=224),
        128,
        learning_rate=0.01,
        heavy=True,
    ),
)
