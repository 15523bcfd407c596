"""Coverage: by which way each parameter's individual gradients are had in one shape of forward pass.

Found by an examination (`cockpit.engine.coverage.examination`); where none is possible, from the shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cockpit.engine.coverage.spread import Path
from cockpit.engine.gradients.parts import Part
from cockpit.engine.layers.formula import Layout, formula_for
from cockpit.engine.seeing.use import Use


class Way(Enum):
    """How a parameter's individual gradients are had."""

    FORMULA = "formula"
    ROWS = "row_contribution"
    SPREAD = "spread"
    VMAP = "vmap"
    LOOP = "loop"
    UNUSED = "unused"
    FROZEN = "frozen"
    NONE = "none"

    @property
    def by_layers(self) -> bool:
        """Whether the gradients come from layer formulas."""
        return self in (Way.FORMULA, Way.ROWS)

    @property
    def by_graph(self) -> bool:
        """Whether they come from extra backward passes."""
        return self in (Way.VMAP, Way.LOOP)

    @property
    def past_layers(self) -> bool:
        """Whether output gradients of layers do not give them."""
        return self.by_graph or self is Way.SPREAD


@dataclass(frozen=True)
class Coverage:
    """The way taken for one parameter, and why."""

    way: Way
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """What was learnt about one shape of forward pass."""

    ways: Mapping[str, Coverage]
    layouts: Mapping[Any, tuple[Layout, ...]] = field(default_factory=dict)
    uses: Mapping[str, int] = field(default_factory=dict)
    checked: bool = True
    unproven: frozenset[str] = frozenset()
    """Parameters whose gradient was rounding when they were checked: nothing is nothing by every formula."""
    finite: bool = True
    """Whether the gradients were finite; if not, nothing was learnt for later."""
    paths: dict[str, Path] = field(default_factory=dict)
    """The way through the graph to where a parameter meets the examples."""
    _served: dict[int, frozenset[str]] = field(default_factory=dict)

    def served_by(self, module: nn.Module, names: Mapping[int, str]) -> frozenset[str]:
        """Return the parameters that a layer's formula serves; ``names`` is a parameter's by its identity."""
        if id(module) not in self._served:
            found = {names[id(p)] for p in module.parameters() if id(p) in names}
            self._served[id(module)] = frozenset(n for n in found if self.ways[n].way.by_layers)
        return self._served[id(module)]

    def used(self, parameters: Iterable[str]) -> list[str]:
        """Return those of the parameters that take part."""
        unused = self.names(Way.UNUSED)
        return [name for name in parameters if name not in unused]

    def names(self, *ways: Way) -> list[str]:
        """Return the parameters that go one of these ways."""
        return [name for name, c in self.ways.items() if c.way in ways]


TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
"""Relative deviation up to which a formula counts as confirmed; half precisions get 0.1.

A wrong formula is off by far more. (Many float64 models compute their norms in float32 inside.)
"""


def parts_of(
    use: Use,
    grads: tuple[Tensor | None, ...],
    examples: int,
    layouts: tuple[Layout, ...],
    names: Mapping[int, str],
    keep: Tensor | None = None,
) -> Iterable[tuple[str, Part]]:
    """Apply the layer's formula: (qualified parameter name, part) for every parameter we watch."""
    for path, found in use.formula.parts(use.call(grads, examples, layouts, keep)).items():
        owner, _, attribute = path.rpartition(".")
        module = use.module.get_submodule(owner)
        parameter = module._parameters.get(
            attribute
        )  # a parametrised weight is no parameter, and not covered
        if parameter is not None and id(parameter) in names:
            for part in found if isinstance(found, tuple) else (found,):
                yield names[id(parameter)], part


def shape_plan(model: nn.Module, parameters: Mapping[str, Tensor], reason: str) -> Plan:
    """Trust formulas and shapes, where extra backward passes are impossible; ``reason`` says why they are.

    What a formula gives is then compared with the growth of ``.grad`` after the pass (`confirmed`).
    """
    with_formula = {id(p) for m in model.modules() if formula_for(m) is not None for p in m.parameters()}
    ways = {
        name: Coverage(Way.FORMULA, f"checked by its sum only: {reason}")
        if id(p) in with_formula
        else Coverage(Way.NONE, f"no layer formula covers it; the fallback is not possible: {reason}")
        for name, p in parameters.items()
    }
    return Plan(ways, checked=False)


def confirmed(found: Tensor | None, grown: Tensor | None) -> bool:
    """Say whether individual gradients add up to what the backward pass added to ``.grad``."""
    if grown is None:
        return found is None or not bool(found.any())
    if found is None:
        return not bool(grown.any())
    scale = float(found.norm()) + float(grown.norm())
    return float((found - grown).norm()) <= TOLERANCE.get(grown.dtype, 0.1) * scale + 1e-30


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers that may normalise with the statistics of the batch."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm)]


def couple_examples(norms: Iterable[_BatchNorm]) -> bool:
    """Say whether some BatchNorm normalises with the statistics of the batch."""
    return any(m.training or m.running_mean is None for m in norms)


def couples_examples(model: nn.Module) -> bool:
    """Say whether some BatchNorm of a model does."""
    return couple_examples(batch_norms(model))
