"""The original, cockpit-for-pytorch 1.0.2 with BackPACK: its configurations, and every quantity alone."""

from __future__ import annotations

from typing import Any

from backpack import extend
from cockpit.utils import schedules
from cockpit.utils.configuration import configuration
from torch import nn
from torch.nn import functional as F

import cockpit as original
from benchmarks.contestants.step import IDLE, Step
from benchmarks.problems.problem import Training
from cockpit import quantities

CONFIGURATIONS = ("economy", "business", "full")


class Original(Step):
    """A training step as the original's documentation writes it."""

    def __init__(self, training: Training, what: str, interval: int) -> None:
        super().__init__(training)
        schedule: Any = schedules.linear(interval)
        if what == IDLE:
            schedule = lambda step: False  # noqa: E731
        label = "economy" if what == IDLE else what
        if label in CONFIGURATIONS:
            watching = configuration(label, track_schedule=schedule)
        else:
            watching = [getattr(quantities, label)(track_schedule=schedule)]
        self._model: nn.Module = extend(training.model)
        self._criterion: nn.Module = extend(training.criterion_of_scores())
        parameters = [p for p in training.model.parameters() if p.requires_grad]
        watcher: Any = original.Cockpit  # not ours, which mypy sees under this name
        self._cockpit = watcher(parameters, watching)
        self._step = 0

    def backward(self) -> None:
        """Run the backward pass inside the original's context."""
        training = self.training
        outputs = training.scores(self._model)
        loss = self._criterion(outputs, training.targets)
        if training.problem.loss == "mse":
            individual = (outputs - training.targets).square().flatten(1).mean(1)
        else:
            individual = (
                F.cross_entropy(outputs, training.targets, reduction="none").view(len(outputs), -1).mean(1)
            )
        info = {
            "loss": loss,
            "individual_losses": individual.detach(),
            "batch_size": len(training.inputs),
            "optimizer": training.optimizer,
        }
        with self._cockpit(self._step, info=info):
            loss.backward(create_graph=self._cockpit.create_graph(self._step))
        self._step += 1


def make(name: str, training: Training, interval: int) -> Step:
    """Return a training watched by a configuration or by the quantity of that class name."""
    return Original(training, name, interval)
