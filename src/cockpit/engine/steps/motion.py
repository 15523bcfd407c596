r"""Motion: what is known of the optimiser's steps beforehand, and of the last one.

Plain gradient descent moves by $-\eta\,g$ with the gradient that stands in ``.grad``. If nobody touches gradients or
parameters between the backward pass and the step (their version counters tell; what is written through ``.data`` has
none), the step is known without a copy of the parameters, and slopes along it follow from those along the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from cockpit.engine.steps.factored import Factored, Vectors
from cockpit.engine.steps.foresight import Foresight
from cockpit.engine.steps.step import Step


class Motion:
    """The steps of one model's optimiser."""

    def __init__(self) -> None:
        self.plain = False
        """Whether the optimiser moves against ``.grad``, times a rate, and in no other way."""
        self.readable = False
        """Whether the optimiser's state will tell its step, so that parameters need not be copied before."""
        self.foresee: Callable[[Mapping[str, Tensor]], Foresight | None] = lambda parameters: None
        """Foresees the step from gradients and the optimiser's state, where they tell it."""
        self.surprised = False
        """Whether a step that was foreseen became another one: from then on steps are waited for."""
        self.untouched: bool | None = None
        """Whether gradients and parameters reach it as the backward pass left them; None: not seen yet."""
        self.last: Vectors = {}
        """The step before. Who has used the factors of a parameter for the last time takes them out."""
        self._versions: dict[str, int] = {}

    @property
    def known(self) -> bool:
        """Whether a step of one micro-batch is known from the gradient."""
        return bool(self.untouched) and self.plain

    def foresight(self, parameters: Mapping[str, Tensor]) -> Foresight | None:
        """Return what tells the coming step of these parameters, if gradients reach the optimiser as they are."""
        return self.foresee(parameters) if self.untouched and not self.surprised else None

    def look(self, step: Step) -> None:
        """Look at gradients and parameters, just before the optimiser moves."""
        step.touched = step.versions() != step.left
        if self.untouched is None or step.touched:
            self.untouched = not step.touched

    def remember(self, updates: Vectors) -> None:
        """Keep the step taken."""
        self.last = updates
        self._versions = {n: v._version for n, (v, _) in updates.items() if isinstance(v, Tensor)}

    def recalled(self) -> Vectors:
        """Return the step before; nothing if the gradient it is a multiple of was overwritten since."""
        if not all([self._is_intact(name, vector) for name, (vector, _) in self.last.items()]):
            self.untouched = False  # gradients are zeroed in place: from now on with copies
            return {}
        return self.last

    def _is_intact(self, name: str, vector: Tensor | Factored) -> bool:
        return vector.intact if isinstance(vector, Factored) else vector._version == self._versions[name]

    def state(self) -> dict[str, tuple[Tensor, float]]:
        """Return the step before, for a checkpoint; what it is a multiple of may be overwritten from now on."""
        return {n: (_dense(v).clone(), factor) for n, (v, factor) in self.recalled().items()}

    def load(self, state: Mapping[str, tuple[Tensor, float]]) -> None:
        """Restore `state`."""
        self.remember({n: (v, factor) for n, (v, factor) in state.items()})


def _dense(vector: Tensor | Factored) -> Tensor:
    return vector.dense() if isinstance(vector, Factored) else vector
