"""Problems with convolutions in one to three dimensions and every option that changes their arithmetic."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from cockpit.testing.problem import Problem, cross_entropy, features


class Frames(nn.Module):
    """Video [N, F, 1, 5, 5]: the frames are folded into the batch axis of the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(27, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C], averaged over frames."""
        h = torch.relu(self.conv(x.flatten(0, 1)))
        logits: Tensor = self.head(h.flatten(1)).unflatten(0, x.shape[:2]).mean(1)
        return logits


def conv1d() -> nn.Module:
    """Stride and dilation."""
    first = nn.Conv1d(2, 4, 3, stride=2, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv1d(4, 3, 2, dilation=2), nn.Flatten(), nn.Linear(9, 3))


def conv2d() -> nn.Module:
    """Padding, pooling, in-place activations, as in the CNNs of the paper."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def conv2d_groups() -> nn.Module:
    """Groups, depthwise included, different strides, dilations and paddings per axis."""
    first = nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)
    depthwise = nn.Conv2d(8, 8, 2, groups=8, dilation=(1, 2), bias=False)
    return nn.Sequential(first, nn.Tanh(), depthwise, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def padded(
    padding: str | int, mode: Literal["zeros", "reflect", "circular"], kernel: int | tuple[int, int] = 3
) -> nn.Module:
    """One convolution with a padding by name or mode, then global average pooling."""
    conv = nn.Conv2d(2, 4, kernel, padding=padding, padding_mode=mode)
    return nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def transposed() -> nn.Module:
    """A transposed convolution with stride, output padding and groups."""
    up = nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
    return nn.Sequential(nn.Conv2d(2, 2, 2), nn.ReLU(), up, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def transposed_1d() -> nn.Module:
    """A transposed convolution over sequences."""
    return nn.Sequential(nn.ConvTranspose1d(2, 3, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def conv3d() -> nn.Module:
    """Three dimensions, stride and padding."""
    return nn.Sequential(nn.Conv3d(1, 3, 2, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def materialised(model: nn.Module, *shape: int) -> nn.Module:
    """The model after one forward pass: lazy layers know their size."""
    with torch.no_grad():
        model(torch.zeros(1, *shape))
    return model


def channels_last() -> nn.Module:
    """The CNN with the memory format that GPUs like."""
    return conv2d().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


IMAGE = features(2, 6, 6)
PROBLEMS = (
    Problem("conv1d", conv1d, features(2, 9), cross_entropy),
    Problem("conv2d", conv2d, IMAGE, cross_entropy, note="in-place activations"),
    Problem("conv2d_channels_last", channels_last, IMAGE, cross_entropy),
    Problem(
        "conv2d_groups", lambda: materialised(conv2d_groups(), 4, 5, 5), features(4, 5, 5), cross_entropy
    ),
    Problem("conv2d_same", lambda: padded("same", "zeros", (3, 5)), IMAGE, cross_entropy),
    Problem("conv2d_reflect", lambda: padded(1, "reflect"), IMAGE, cross_entropy),
    Problem("conv2d_circular", lambda: padded("same", "circular"), IMAGE, cross_entropy),
    Problem("conv3d", lambda: materialised(conv3d(), 1, 4, 4, 4), features(1, 4, 4, 4), cross_entropy),
    Problem("conv_transpose", lambda: materialised(transposed(), 2, 4, 4), features(2, 4, 4), cross_entropy),
    Problem("conv_transpose_1d", lambda: materialised(transposed_1d(), 2, 5), features(2, 5), cross_entropy),
    Problem("conv_frames", Frames, features(4, 1, 5, 5), cross_entropy, note="4 uses per example"),
)
