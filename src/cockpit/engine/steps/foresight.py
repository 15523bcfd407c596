r"""Foresight: the step that the optimiser is about to take, told parameter by parameter while the backward pass runs.

The slopes of the examples along the coming step, $g_n^\top (\theta_{t+1} - \theta_t)$, need the step, and that is known
when the optimiser has moved. To wait for it means to hold what individual gradients are made of, of all layers: more
than the rest of a training step has. But a step of SGD with momentum or Adam follows from ``.grad`` and the optimiser's
state, so that it can be told as soon as autograd has summed a parameter's gradient, and let go when that was projected.

It is told too early if somebody changes gradients, parameters or the optimiser's settings afterwards. Then it did not
`hold`, and nothing of it is used. A learning rate may change: slopes are proportional to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from cockpit.engine.steps.versions import Versions, gradient_versions


class Teller(Protocol):
    """Knows an optimiser."""

    def tell(self, parameter: Tensor) -> Tensor | None:
        """Return the step that a parameter will take with the gradient in ``.grad``; None: nobody knows."""

    def rate(self, parameter: Tensor) -> float:
        """Return a parameter's learning rate, which its step is proportional to."""

    def settings(self) -> Any:
        """Return whatever else steps depend on, besides gradients and state."""


class Foresight:
    """Foresees one step of some parameters."""

    def __init__(self, parameters: Mapping[str, Tensor], teller: Teller) -> None:
        self._parameters, self._teller = parameters, teller
        self._settings = teller.settings()
        self._seen: dict[str, Versions] = {}
        self._rates: dict[str, float] = {}

    def coming(self, name: str) -> tuple[Tensor, float] | None:
        """Return the coming step of a parameter as a vector and a factor; None: it is not known."""
        parameter = self._parameters[name]
        self._seen[name] = gradient_versions({name: parameter})
        self._rates[name] = self._teller.rate(parameter)
        step = self._teller.tell(parameter)
        return None if step is None else (step, 1.0)

    def holds(self) -> bool:
        """Say whether the step taken was a multiple of the one foreseen, of every parameter."""
        if self._teller.settings() != self._settings:
            return False
        if any(not told and now for told, now in zip(self._rates.values(), self._now(), strict=True)):
            return False  # of nothing, no rate makes a step
        return all([gradient_versions({n: self._parameters[n]}) == seen for n, seen in self._seen.items()])

    def factors(self) -> dict[str, float]:
        """Return what multiple of the step foreseen was taken; nothing where it was that step itself."""
        now = self._now()
        if now == [*self._rates.values()]:
            return {}
        both = zip(self._rates.items(), now, strict=True)
        return {name: rate / told if told else 1.0 for (name, told), rate in both}

    def _now(self) -> list[float]:
        return [self._teller.rate(self._parameters[name]) for name in self._rates]
