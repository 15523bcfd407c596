"""The cost of watching one model: every configuration and every quantity against the untracked step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from cockpit.bench.clock import Times, timed
from cockpit.bench.memory import peak_bytes
from cockpit.bench.rounds import Entry, Outcome, Pace, measure, reason
from cockpit.bench.watched import IDLE, UNTRACKED, Training, Watched
from cockpit.doctor.coverage import _losses
from cockpit.doctor.target import Target
from cockpit.errors import CockpitError
from cockpit.presets import PRESETS
from cockpit.registry import quantity_classes


@dataclass
class Bill:
    """What watching a model costs: times, peak bytes, and what could not be measured, for each contestant."""

    examples: int
    outcome: Outcome
    memory: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)


def contestants() -> list[str]:
    """Return everything that is measured, in the order it is shown."""
    return [UNTRACKED, IDLE, *PRESETS, *sorted(quantity_classes())]


def bill(
    target: Target,
    names: Sequence[str],
    device: str,
    pace: Pace,
    interval: int = 1,
    learning_rate: float = 1e-3,
    say: Callable[[str], None] = lambda text: None,
) -> Bill:
    """Measure the contestants of these names on copies of the target's model."""
    if target.inputs is None:
        raise CockpitError(
            f"{target.name}: inputs are needed to run the model. Let the function return a pair (model, example "
            "inputs), or give the script `example_inputs`."
        )
    model = _moved(target.model, device)
    inputs = _moved(target.inputs, device)

    def losses(net: nn.Module) -> Tensor:
        return _losses(Target(target.name, net, inputs))

    def make(name: str) -> Training:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=learning_rate)
        if name == UNTRACKED:
            return Training(own, optimizer, losses)
        return Watched(own, optimizer, losses, name, interval)

    trainings: dict[str, Training] = {}

    def entry(name: str) -> Entry:
        def run(steps: int) -> Times:
            if name not in trainings:
                trainings[name] = make(name)
            return timed(trainings[name].step, steps, device, trainings[name].settle)

        return Entry(name, run, UNTRACKED, 1 if name in (UNTRACKED, IDLE) else interval)

    examples = len(losses(model))
    try:
        found = Bill(examples, measure([entry(name) for name in names], pace, say))
        found.gaps = {name: gaps for name, training in trainings.items() if (gaps := training.gaps())}
    finally:
        for training in trainings.values():
            training.close()
        trainings.clear()
    for name in found.outcome.costs:
        say(f"memory of {name}")
        try:
            found.memory[name] = _peak(lambda name=name: make(name), device, interval)  # type: ignore[misc]
        except Exception as failure:
            found.outcome.reasons[f"memory of {name}"] = reason(failure)
    return found


def _peak(make: Callable[[], Training], device: str, interval: int) -> int:
    made: list[Training] = []

    def build() -> Callable[[], None]:
        made.append(make())
        return made[0].step

    try:
        return peak_bytes(build, device, warm=max(2, interval), steps=max(2, interval))
    finally:
        for training in made:
            training.close()


def _moved(thing: Any, device: str) -> Any:
    """Return a copy on the device."""
    if isinstance(thing, nn.Module):
        return copy.deepcopy(thing).to(device)
    return tree_map(lambda leaf: leaf.detach().to(device) if isinstance(leaf, Tensor) else leaf, thing)
