"""Recall: the step before, on which individual gradients are projected, and the next one's in its place.

The step before may be as large as the model. So what was used for the last time is let go at once: where it is known
by its factors as soon as the gradients of a parameter are complete, before autograd has summed them.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.seeing.use import Use
from cockpit.engine.steps.factored import Factored, Vectors


class Recall:
    """The step before as one micro-batch sees it.

    Args:
        last: the step before; who follows takes its parameters out.
        follows: whether this is the only micro-batch of its step, of which factors are to be kept in turn.
    """

    def __init__(self, last: Vectors, follows: bool) -> None:
        self._last, self._follows = last, follows
        self._projected: dict[str, Tensor] = {}
        self.factored: dict[str, Factored] = {}
        """Sums of individual gradients by their factors, where they were to be kept and are the smaller so."""

    def project(self, g: ExampleGradients, whole: bool = True) -> None:
        """Project gradients on the factors of the step before, if it is known by them.

        ``whole``: these are the parameter's gradients of all examples.
        """
        vector, factor = self._last.get(g.name, (None, 1.0))
        if isinstance(vector, Factored):
            self._projected[g.name] = vector.dot(g) * factor
            if self._follows and whole:
                del self._last[g.name]

    def projected(self, name: str) -> Tensor | None:
        """Return what `project` has found, [N]."""
        return self._projected.pop(name, None)

    def direction(self, name: str) -> tuple[Tensor, float] | None:
        """Return the step of a parameter as a vector and a factor; None: it is not known."""
        vector, factor = self._last.get(name, (None, 1.0))
        return (vector, factor) if isinstance(vector, Tensor) else None

    def follow(self, g: ExampleGradients, sources: Iterable[Use], reduced: bool) -> None:
        """Put this step in the place of the one before; ``reduced``: nobody will project on that any more."""
        if not self._follows:
            return
        if reduced:
            self._last.pop(g.name, None)
        if (factors := Factored.of(g, sources)) is not None:
            self.factored[g.name] = factors
