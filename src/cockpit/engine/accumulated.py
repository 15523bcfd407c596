r"""The mean gradient of a step as the backward passes left it in ``.grad``.

``.grad`` is $\sum_i w_i g_i$ over all micro-batches, plus whatever stood there before. With one weight for a
micro-batch's examples, its growth divided by that weight is $\sum_i g_i$; with several weights an extra backward
pass gives that sum. It is read when a pass ends, before anyone clips, unscales or averages it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.engine.parts import wide


class Accumulated:
    r"""Sums $\sum_i g_i$ over the micro-batches of one step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.examples = 0
        self._sums: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._weight: float | None = None
        self._size = 0
        self._taken = False

    def snapshot(self) -> None:
        """Remember what stands in ``.grad`` before a backward pass."""
        self._before = {n: p.grad.detach().clone() for n, p in self._parameters.items() if p.grad is not None}
        self._taken = True

    def enter(self, examples: int) -> None:
        """Prepare for a backward pass over some examples."""
        if not self._taken:
            self.snapshot()
        self._taken = False
        self._size, self._weight = examples, 1 / max(1, examples)

    def weigh(self, weights: Tensor, losses: Tensor) -> None:
        """Take note of the objective's weights, or sum the gradients now if they differ."""
        kept = weights != 0
        self._size = int(kept.sum())
        if bool((weights == weights[0]).all()):
            self._weight = float(weights[0])
            return
        self._weight = None
        grads = torch.autograd.grad(
            losses, list(self._parameters.values()), kept.to(losses), retain_graph=True, allow_unused=True
        )
        for name, g in zip(self._parameters, grads, strict=True):
            if g is not None:
                self._add(name, wide(g))

    def leave(self) -> dict[str, Tensor]:
        r"""Read ``.grad`` after the backward pass; return this pass's $\sum_i g_i$, where ``.grad`` tells it."""
        self.examples += self._size
        found = {}
        if self._weight:
            for name, p in self._parameters.items():
                if p.grad is not None:
                    grown = wide(p.grad.detach().to_dense())
                    if name in self._before:
                        grown = grown - wide(self._before[name].to_dense())
                    found[name] = grown / self._weight
                    self._add(name, found[name])
        self._before = {}
        return found

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient of every parameter that got one."""
        return {name: total / max(1, self.examples) for name, total in self._sums.items()}
