"""What a test problem is: a small model, its data and one loss per example, all reproducible from its name.

Axes: N examples, T tokens or time steps, d features, C classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[tuple[Tensor, ...], Tensor]
"""Inputs of the model and targets of the loss."""

Weighting = Literal["mean", "sum", "scaled", "weighted"]
"""How a training loop turns losses into the scalar it differentiates, see :func:`objective`."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, its data and one loss per example; the same numbers in every process.

    Nothing here touches the global random stream: building and drawing use their own generators. The forward
    pass does where the model is random (``random``); seed the stream before training to get the same masks.

    Attributes:
        name: Unique in the zoo.
        module: Makes the model; called with a seeded random stream that is put back afterwards.
        draw: Makes a batch of n examples from a generator.
        criterion: What the model returns and the targets, to the losses [N].
        exact: Per-example gradients have one meaning; false where batch statistics are part of the model.
        coupled: The loss of an example depends on the other examples of its micro-batch.
        random: The forward pass draws from the global random stream.
        outputs: The model returns one tensor, on which the criterion acts: a Gauss-Newton matrix is defined.
        double_backward: Plain ``autograd.grad(..., create_graph=True)`` can be differentiated again.
        grad_calls: ``autograd.grad`` works; reentrant checkpointing only allows ``backward``.
        axes: The batch axis of each input; the rest is 0, as is that of the targets.
        note: What is special about it.
    """

    name: str
    module: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Batch]
    criterion: Callable[[Any, Tensor], Tensor]
    exact: bool = True
    coupled: bool = False
    random: bool = False
    outputs: bool = True
    double_backward: bool = True
    grad_calls: bool = True
    axes: tuple[int, ...] = ()
    note: str = ""

    def build(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A fresh model, always with the same parameters, in the mode it is meant to be trained in."""
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(zlib.crc32(self.name.encode()))
            model = self.module()
        return model.to(dtype)

    def batch(self, n: int, step: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        """The n examples of a step."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name} {step}".encode()))
        inputs, targets = self.draw(n, generator)
        return tuple(as_dtype(x, dtype) for x in inputs), as_dtype(targets, dtype)

    def split(self, batch: Batch, sizes: Sequence[int]) -> list[Batch]:
        """The batch cut into micro-batches of the given sizes, along each input's own batch axis."""
        inputs, targets = batch
        axes = self.axes + (0,) * (len(inputs) - len(self.axes))
        pieces = [x.split(list(sizes), axis) for x, axis in zip(inputs, axes, strict=True)]
        return [
            (tuple(x), y) for x, y in zip(zip(*pieces, strict=True), targets.split(list(sizes)), strict=True)
        ]

    def losses(self, model: nn.Module, inputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """One loss per example, [N]."""
        return self.criterion(model(*inputs), targets)


def objective(losses: Tensor, weighting: Weighting = "mean") -> Tensor:
    """The scalar that a training loop differentiates for one micro-batch.

    ``mean`` and ``sum`` as they say, ``scaled`` 1024 times the mean as under a gradient scaler, ``weighted``
    the mean with fixed positive weights, evenly spaced from 1/2 to 2 over the micro-batch.
    """
    match weighting:
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
        case "scaled":
            return losses.mean() * 1024
        case "weighted":
            weights = torch.linspace(0.5, 2.0, len(losses), dtype=losses.dtype, device=losses.device)
            return (weights * losses).mean()


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating point tensors in the given type, others as they are."""
    return x.to(dtype) if x.is_floating_point() else x


def features(*shape: int, classes: int = 3) -> Callable[[int, torch.Generator], Batch]:
    """Normally distributed inputs [N, *shape] and class labels [N]."""

    def draw(n: int, g: torch.Generator) -> Batch:
        return (torch.randn(n, *shape, generator=g),), torch.randint(classes, (n,), generator=g)

    return draw


def words(length: int, vocabulary: int, classes: int = 3) -> Callable[[int, torch.Generator], Batch]:
    """Token numbers [N, T] and class labels [N]."""

    def draw(n: int, g: torch.Generator) -> Batch:
        tokens = torch.randint(vocabulary, (n, length), generator=g)
        return (tokens,), torch.randint(classes, (n,), generator=g)

    return draw


def text(length: int, vocabulary: int) -> Callable[[int, torch.Generator], Batch]:
    """Token numbers [N, T] and the token that follows each of them [N, T]."""

    def draw(n: int, g: torch.Generator) -> Batch:
        tokens = torch.randint(vocabulary, (n, length + 1), generator=g)
        return (tokens[:, :-1],), tokens[:, 1:]

    return draw


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of outputs [N, C] and labels [N]."""
    return F.cross_entropy(outputs, targets, reduction="none")


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of outputs [N, T, C] and labels [N, T], averaged over the tokens of an example."""
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error, averaged over all outputs of an example."""
    return (outputs - targets).square().flatten(1).mean(1)
