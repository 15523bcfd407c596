"""A training that can be run step by step: untracked, or watched by a configuration or by one quantity."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit.presets import PRESETS
from cockpit.registry import make_quantity
from cockpit.schedule import Schedule, at, every
from cockpit.session import Cockpit
from cockpit.store.run import Run

UNTRACKED = "untracked"
IDLE = "idle"
"""A cockpit whose quantities are never due: what is paid at the steps between."""

UNDEFINED = ("concave", "flat", "zero_gradient")
"""Statuses of values that were measured and do not exist."""


class Training:
    """One training on one fixed batch; ``losses`` runs the forward pass and returns one loss per example, [N]."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, losses: Callable[[nn.Module], Tensor]
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.losses = losses

    def step(self) -> None:
        """Run an untracked step."""
        self.losses(self.model).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Nothing is left to other threads."""

    def close(self) -> None:
        """Nothing is held."""

    def gaps(self) -> list[str]:
        """Nothing was asked for, so nothing is missing."""
        return []


class Watched(Training):
    """The same, watched: ``what`` is a configuration, the name of a quantity, or `IDLE` (economy, never due)."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        losses: Callable[[nn.Module], Tensor],
        what: str,
        interval: int = 1,
    ) -> None:
        super().__init__(model, optimizer, losses)
        self._place = tempfile.TemporaryDirectory(prefix="cockpit-bench-")
        when: Schedule = at() if what == IDLE else every(interval)
        config = "economy" if what == IDLE else what
        quantities = [make_quantity(name, when) for name in PRESETS.get(config, (config,))]
        self.cockpit = Cockpit(model, optimizer, quantities=quantities, run=Path(self._place.name) / "run")

    def step(self) -> None:
        """Run a watched step."""
        self.cockpit.backward(self.losses(self.model))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Have everything on disk: the writing belongs to those who caused it, not to who comes next."""
        self.cockpit._evaluation.settle(wait=True)
        writer = self.cockpit._recorder._writer
        if writer is not None:
            writer.flush()

    def close(self) -> None:
        """End the run and delete it."""
        self.cockpit.close()
        self._place.cleanup()

    def gaps(self) -> list[str]:
        """Return what could not be measured, and why: a quantity that fails is fast and worth nothing."""
        self.settle()
        run = Run(Path(self._place.name) / "run")
        found = {event.text: None for event in run.events("gap")}
        for name in run.names():
            if "" in run.scopes(name):
                series = run.series(name)
                value, status = series.values[-1], series.status[-1]
                if isinstance(value, float) and math.isnan(value) and not status.startswith(UNDEFINED):
                    found.setdefault(f"{name}: {status}")
        return list(found)
