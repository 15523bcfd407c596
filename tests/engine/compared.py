"""Trainings watched twice, by shortcuts and without (``fast=False``), and their records compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.steps import passes as passes_module
from session.loops import FIRST_ORDER, Records, differences, net, plain, sgd, trained

Body = Callable[[Cockpit, nn.Module, Any, int], object]
BY_STEP = [name for name in FIRST_ORDER if name != "parameters"]
"""First order, but for what has the parameters copied anyway."""


@dataclass
class Watcher:
    """Trains twice, and counts on how many steps the parameters were copied to see the update."""

    folder: Path
    copies: list[int] = field(default_factory=list)
    taken: int = 0

    def both(
        self,
        body: Body = plain,
        steps: int = 5,
        model: Callable[[], nn.Module] = net,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
        quantities: Any = BY_STEP,
    ) -> tuple[Records, Records]:
        found = []
        for fast in (True, False):
            self.taken = 0
            folder = self.folder / str(fast)
            found.append(trained(folder, body, steps, model(), optimizer, list(quantities), fast=fast))
            self.copies.append(self.taken)
        return found[0], found[1]

    def same(self, *args: Any, **settings: Any) -> None:
        found, expected = self.both(*args, **settings)
        assert differences(found, expected, rtol=1e-9) == []


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    watcher, copied = Watcher(tmp_path), passes_module._copied

    def counted(parameters: Any) -> dict[str, Tensor]:
        watcher.taken += 1
        return copied(parameters)

    monkeypatch.setattr(passes_module, "_copied", counted)
    monkeypatch.setattr(Recorder, "serves", lambda device: False)  # which would do the copying themselves
    return watcher


def gaps(found: Records, word: str) -> set[tuple[int, str]]:
    return {(t, name) for (t, name, scope), (_, status) in found.items() if status.startswith(word)}


def lines(found: Records, expected: Records) -> set[tuple[int, str]]:
    """(step, quantity) of everything that differs."""
    return {
        (key[0], key[1].split(".")[0])
        for key in {**expected, **found}
        if key not in found
        or key not in expected
        or differences({key: found[key]}, {key: expected[key]}, rtol=1e-9)
    }
