r"""Foresight: the step that the optimiser is about to take, told parameter by parameter while the backward pass runs.

The slopes of the examples along the coming step, $g_n^\top (\theta_{t+1} - \theta_t)$, need the step, and that is known
when the optimiser has moved. To wait for it means to hold what individual gradients are made of, of all layers: more
than the rest of a training step has. But a step of SGD with momentum or Adam follows from ``.grad`` and the optimiser's
state, so that it can be told as soon as autograd has summed a parameter's gradient, and let go when that was projected.

It is told too early if somebody changes gradients, parameters or the optimiser's settings afterwards. Then it did not
`hold`, and nothing of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cockpit.engine.steps.versions import Versions, gradient_versions


class Foresight:
    """Foresees one step.

    Args:
        parameters: by name.
        tell: returns the step that a parameter will take with the gradient that stands in ``.grad``; None: unknown.
        settings: returns what the step depends on besides gradients and state.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        tell: Callable[[Tensor], Tensor | None],
        settings: Callable[[], Any],
    ) -> None:
        self._parameters, self._tell, self._settings = parameters, tell, settings
        self._before = settings()
        self._seen: dict[str, Versions] = {}

    def coming(self, name: str) -> tuple[Tensor, float] | None:
        """Return the coming step of a parameter as a vector and a factor; None: it is not known."""
        parameter = self._parameters[name]
        self._seen[name] = gradient_versions({name: parameter})
        step = self._tell(parameter)
        return None if step is None else (step, 1.0)

    def holds(self) -> bool:
        """Say whether gradients and settings are still those that the step was told from."""
        if self._settings() != self._before:
            return False
        return all([gradient_versions({n: self._parameters[n]}) == seen for n, seen in self._seen.items()])
