"""The training that is watched: a small convolutional network on 3,000 images of clothes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cockpit.data import Images, fashion_mnist
from cockpit.quantities.quantity import Quantity
from cockpit.registry import make_preset
from cockpit.schedule import every
from cockpit.session import Cockpit

WATCHED = 50
"""How many of the steps are watched; more cost time and show little more."""
EVALUATED = 15
"""How often the accuracy on the test images is measured."""


@dataclass(frozen=True)
class Moment:
    """Where the training is; ``accuracy`` is the newest one, NaN before the first."""

    step: int
    steps: int
    loss: float
    accuracy: float
    seconds: float


def network() -> nn.Module:
    """Return the network: two convolutions with ReLU and pooling, one dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def watched_quantities(config: str, steps: int) -> list[Quantity]:
    """Return a configuration's quantities, due so often that about `WATCHED` steps are watched."""
    when = every(max(1, steps // WATCHED))
    return [replace(quantity, when=when) for quantity in make_preset(config)]


def train(
    cockpit: Cockpit,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    batch_size: int,
    show: Callable[[Moment], None],
) -> None:
    """Train for a number of steps; ``show`` is called after each."""
    training, test = (_tensors(part) for part in fashion_mnist())
    shuffle = torch.Generator().manual_seed(1)
    accuracy, start = float("nan"), time.monotonic()
    for step in range(steps):
        chosen = torch.randint(len(training[0]), (batch_size,), generator=shuffle)
        losses = nn.functional.cross_entropy(
            model(training[0][chosen]), training[1][chosen], reduction="none"
        )
        cockpit.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
        done = step + 1
        if done == steps or done % max(1, steps // EVALUATED) == 0:
            accuracy = measured_accuracy(model, *test)
            cockpit.log(valid_accuracy=accuracy)
        show(Moment(done, steps, float(losses.detach().mean()), accuracy, time.monotonic() - start))


def measured_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that are put into the right class."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())


def _tensors(part: Images) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(part.images).float().div(255).unsqueeze(1)
    return images, torch.from_numpy(part.labels).long()
