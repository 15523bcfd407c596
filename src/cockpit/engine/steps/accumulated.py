r"""The mean gradient of a step as the backward passes left it in ``.grad``.

``.grad`` is $\sum_i w_i g_i$ over all micro-batches, plus whatever stood there before. With one weight for a
micro-batch's examples, its growth divided by that weight is $\sum_i g_i$; with several weights an extra backward
pass gives that sum. It is read when a pass ends, before anyone clips, unscales or averages it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from cockpit.engine.numbers.precision import wide
from cockpit.engine.seeing.weights import Weights


class Accumulated:
    r"""Sums $\sum_i g_i$ over the micro-batches of one step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.examples = 0
        self._sums: dict[str, tuple[Tensor, float]] = {}
        self._before: dict[str, Tensor] = {}
        self._weight: float | None = None
        self._size = 0
        self._taken = False
        self._own = False

    def snapshot(self) -> None:
        """Remember what stands in ``.grad`` before a backward pass."""
        self._before = {n: p.grad.detach().clone() for n, p in self._parameters.items() if p.grad is not None}
        self._taken = True

    def enter(self, examples: int, own: bool = False) -> None:
        """Prepare for a backward pass over some examples, of their mean and nothing else (``own``) or of whatever."""
        if not self._taken:
            self.snapshot()
        self._taken = False
        if self._before:
            self.keep()  # this pass adds to ``.grad`` in place
        self._size, self._weight = examples, 1 / max(1, examples)
        self._own = own

    def sum_of(self, name: str) -> tuple[Tensor, float] | None:
        r"""Return this pass's $\sum_i g_i$ as a vector and a factor, where ``.grad`` already tells it exactly."""
        p = self._parameters[name]
        if not self._own or not self._weight or p.grad is None or name in self._before:
            return None
        return wide(p.grad.detach()), 1 / self._weight

    def weigh(self, weights: Weights, losses: Tensor) -> None:
        """Take note of the objective's weights, or sum the gradients now if they differ."""
        self._size = weights.counted
        self._weight = weights.common
        if self._weight is not None or not weights.counted:
            return
        kept = weights.values != 0
        grads = torch.autograd.grad(
            losses, list(self._parameters.values()), kept.to(losses), retain_graph=True, allow_unused=True
        )
        for name, g in zip(self._parameters, grads, strict=True):
            if g is not None:
                self._add(name, wide(g), 1.0)

    def leave(self) -> dict[str, tuple[Tensor, float]]:
        r"""Read ``.grad`` after the backward pass; return this pass's $\sum_i g_i$, where ``.grad`` tells it."""
        self.examples += self._size
        found: dict[str, tuple[Tensor, float]] = {}
        if self._weight:
            for name, p in self._parameters.items():
                if p.grad is not None:
                    grown = wide(p.grad.detach())
                    grown = grown if grown.layout is torch.strided else grown.to_dense()
                    if name in self._before:
                        grown = grown - wide(self._before[name].to_dense())
                    found[name] = (grown, 1 / self._weight)
                    self._add(name, *found[name])
        self._before = {}
        return found

    def _add(self, name: str, value: Tensor, factor: float) -> None:
        if name not in self._sums:
            self._sums[name] = (value, factor)
        else:
            before, other = self._sums[name]
            self._sums[name] = (before * other + value * factor, 1.0)

    def keep(self) -> None:
        """Make the sums our own: what stands in ``.grad`` may be clipped, averaged or cleared before they are read."""
        self._sums = {name: (value * factor, 1.0) for name, (value, factor) in self._sums.items()}

    def sums(self) -> dict[str, tuple[Tensor, float]]:
        r"""Return $\sum_i g_i$ of every parameter that got a gradient, as a vector and a factor."""
        return self._sums

    def mean(self) -> dict[str, Tensor]:
        """Return the mean gradient of every parameter that got one."""
        return {
            name: value * (factor / max(1, self.examples)) for name, (value, factor) in self._sums.items()
        }


def altered(parameters: Iterable[Tensor]) -> bool:
    """Say whether hooks of the user may change what arrives in ``.grad``."""
    # (A list: faster than a generator, and asked at every step.)
    return any([p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters])
