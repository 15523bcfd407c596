"""Small trainings in float64 under the facade, for its tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.legacy import Cockpit, extend

Batch = tuple[Tensor, Tensor]
Info = dict[str, Any]


def always(step: int) -> bool:
    return True


def network(seed: int = 0) -> nn.Sequential:
    random = np.random.RandomState(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(random.normal(0, 0.7, p.shape)))
    return model


def batches(count: int, size: int = 6, seed: int = 1) -> list[Batch]:
    random = np.random.RandomState(seed)
    return [
        (torch.from_numpy(random.normal(size=(size, 4))), torch.from_numpy(random.randint(0, 3, size)))
        for _ in range(count)
    ]


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr)


def step(
    watch: Cockpit,
    number: int,
    model: nn.Module,
    criterion: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    only: Sequence[str] = ("loss", "individual_losses", "batch_size", "optimizer"),
) -> None:
    """One step of training as a script for the original writes it."""
    x, y = batch
    optimizer.zero_grad()
    outputs = model(x)
    loss = criterion(outputs, y)
    losses = F.cross_entropy(outputs, y, reduction="none")
    info = {"loss": loss, "individual_losses": losses, "batch_size": len(x), "optimizer": optimizer}
    with watch(number, info={key: info[key] for key in only}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        loss.backward(create_graph=watch.create_graph(number))
    optimizer.step()


def trained(
    quantities: Iterable[Any],
    steps: Sequence[int] = range(4),
    extended: bool = True,
    lr: float = 0.1,
    reduction: str = "mean",
    size: int = 6,
    **options: Any,
) -> tuple[dict[int, dict[str, Any]], nn.Module]:
    """Train the network for some steps; return what was tracked, and the network."""
    model, criterion = network(), nn.CrossEntropyLoss(reduction=reduction)
    if extended:
        extend(model)
        extend(criterion)
    watch, optimizer = Cockpit(model.parameters(), quantities), sgd(model, lr)
    for number, batch in zip(steps, batches(len(steps), size), strict=True):
        step(watch, number, model, criterion, optimizer, batch, **options)
    return watch.get_output(), model


def same(found: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    """Compare tracked values, however they are nested."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key in wanted:
            same(found[key], wanted[key], rtol, atol)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b, rtol, atol)
    else:
        np.testing.assert_allclose(found, wanted, rtol, atol)
