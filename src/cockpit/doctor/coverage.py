"""How a model is covered: by which way each parameter's individual gradients are had, and why."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import cockpit.engine.layers  # noqa: F401 - fills the register of formulas
from cockpit.doctor.target import Target
from cockpit.engine.coverage.coverage import couples_examples
from cockpit.engine.layers.formula import formula_for
from cockpit.errors import CockpitError
from cockpit.session import Cockpit
from cockpit.store.run import Run

Ways = dict[str, tuple[str, str]]

MEANING = {
    "formula": "exact, by a formula of their layer; the cheapest way",
    "row_contribution": "what an example's rows add to the joint gradient (BatchNorm in training mode)",
    "spread": "exact, where they meet the examples (positions, class tokens); as cheap as a formula",
    "vmap": "exact, by one backward pass for each example, many at once",
    "loop": "exact, by one backward pass for each example, one after the other; slow",
    "unused": "no loss depends on them",
    "frozen": "do not require gradients",
    "none": "not covered: left out of what needs individual gradients",
    "expected: formula": "their layers have formulas",
    "expected: vmap or loop": "no formula: backward passes for each example, exact but slower",
}


@dataclass(frozen=True, eq=False)
class Covered:
    """The ways of a model's parameters; ``how`` says whether they were tried or only expected."""

    ways: Ways
    tried: bool
    how: str


@dataclass(frozen=True)
class Group:
    """Parameters that go the same way for the same reason, in short: `layers.*.weight (12)`."""

    way: str
    reason: str
    parameters: int
    weights: int
    names: tuple[str, ...]


def covered(target: Target) -> Covered:
    """Try a watched backward pass where there are example inputs; else say what is expected of the layers."""
    if not any(p.requires_grad for p in target.model.parameters()):
        raise CockpitError(f"{target.name} has no trainable parameter, so there is nothing to watch.")
    if target.inputs is None:
        how = "expected from the layers' types; to try it, let the function return (model, example inputs)"
        return Covered(_expected(target.model), False, how)
    return _tried(target)


def _tried(target: Target) -> Covered:
    model = target.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with tempfile.TemporaryDirectory() as folder:
        with Cockpit(model, optimizer, quantities=["norm_test"], run=Path(folder) / "run") as watching:
            losses = _losses(target)
            watching.backward(losses)
            ways = watching.coverage
        if not ways:
            gaps = "; ".join(event.text for event in Run(Path(folder) / "run").events())
            return Covered(_expected(model), False, f"expected: watching failed: {gaps}")
    return Covered(ways, True, f"tried on a backward pass over {len(losses)} examples")


def _losses(target: Target) -> Tensor:
    """Return a stand-in for the losses: each example's mean square of the outputs."""
    inputs = target.inputs
    try:
        if isinstance(inputs, Mapping):
            outputs: Any = target.model(**inputs)
        else:
            outputs = target.model(*inputs) if isinstance(inputs, tuple | list) else target.model(inputs)
    except Exception as error:
        raise CockpitError(
            f"{target.name} cannot be called with its inputs: {type(error).__name__}: {error}"
        ) from error
    tensors = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad and t.ndim > 0]
    if not tensors:
        raise CockpitError(
            f"{target.name} gives no output with examples in its first axis that a loss could use."
        )
    batched = [t for t in tensors if len(t) == len(tensors[0])]
    each = [t.reshape(len(t), -1).square().mean(1) for t in batched]
    return torch.stack(each).sum(0)


def _expected(model: nn.Module) -> Ways:
    known: dict[int, str] = {}
    for module in model.modules():
        if formula_for(module) is not None:
            known.update({id(p): type(module).__name__ for p in module.parameters()})
    coupled = (
        "; if a BatchNorm in training mode comes after them: row_contribution"
        if couples_examples(model)
        else ""
    )
    ways: Ways = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            ways[name] = ("frozen", "does not require gradients")
        elif id(p) in known:
            ways[name] = ("expected: formula", coupled.lstrip("; "))
        else:
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            ways[name] = ("expected: vmap or loop", f"no layer formula for {owner}{coupled}")
    return ways


def groups(model: nn.Module, ways: Ways) -> list[Group]:
    """Put parameters together that go the same way for the same reason, the largest group first."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    found: dict[tuple[str, str], list[str]] = {}
    for name, key in ways.items():
        found.setdefault(key, []).append(name)
    result = [
        Group(way, reason, len(names), sum(sizes.get(n, 0) for n in names), _short(names))
        for (way, reason), names in found.items()
    ]
    return sorted(result, key=lambda g: -g.weights)


def _short(names: list[str]) -> tuple[str, ...]:
    """Name layers that are repeated three times or more once: ``layers.*.weight (12)``."""
    patterns: dict[str, list[str]] = {}
    for name in names:
        patterns.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    short: list[str] = []
    for pattern, members in patterns.items():
        short += members if len(members) < 3 else [f"{pattern} ({len(members)})"]
    return tuple(short)
