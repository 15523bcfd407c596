"""Slopes at the start of a step, along an update that is known only when the next step begins.

The facade reads a step when its ``with`` block is left, before the optimizer moves. What Alpha needs of it
later is kept as the engine has it, in the layers' inputs and output gradients: N·T·(I+O) numbers where a
formula serves a layer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.seeing.use import Use
from cockpit.engine.statistics import Join, Statistic


class Held(Statistic):
    """Keeps individual gradients instead of reducing them; its own value is meaningless."""

    over_examples = Join.SUM
    over_parameters = Join.SUM
    keeps = True

    def __init__(self) -> None:
        self._hash = id(self)
        self._pieces: dict[str, list[ExampleGradients]] = {}
        self._uses: list[Use] = []

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Keep the gradients; those of one parameter may come in several blocks of examples."""
        self._pieces.setdefault(g.name, []).append(g)
        return torch.zeros((), device=g.parameter.device)

    def guard(self, uses: list[Use]) -> None:
        """Remember the layer calls whose inputs must stay as they were."""
        self._uses = uses

    def slopes(self, updates: Mapping[str, Tensor]) -> dict[str, Tensor]:
        r"""Return $g_n^\top s$ for every example and parameter; nothing if an input was overwritten since."""
        if not all(use.intact() for use in self._uses):
            return {}
        with torch.no_grad():
            return {
                name: torch.cat([g.dot(updates[name]) for g in pieces])
                for name, pieces in self._pieces.items()
                if name in updates
            }
