"""Scaling: numbers of a recorded step that follow from others by factors known on the host only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cockpit.engine.answers.requests import GRADIENTS, LAST, MEAN, UPDATE, UPDATES
from cockpit.engine.answers.table import Table


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""Learning rates and the factors of the step before.

    A plain step is $s = -\eta g$, so slopes along it are $-\eta\, g_n^\top g$ and its length is $\eta\|g\|$; the step
    before is kept as a sum of gradients and a factor.
    """

    rates: Mapping[str, float] | None = None
    last: Mapping[str, float] = field(default_factory=dict)

    def apply(self, table: Table) -> None:
        """Enter what follows."""
        scale(table, [self])


def scale(table: Table, steps: Sequence[Scaling]) -> None:
    """Enter what follows at a step, or at each of a stretch, where numbers have one more leading axis."""
    if table.has(LAST):
        names, slopes = table.stacked(LAST)
        table.settle(LAST, names, slopes * _factors(names, slopes, [step.last for step in steps])[..., None])
    rates = [step.rates for step in steps if step.rates is not None]
    if not rates:
        return
    if table.has(MEAN):
        names, slopes = table.stacked(MEAN)
        table.settle(UPDATE, names, slopes * -_factors(names, slopes, rates)[..., None])
    if table.has(GRADIENTS):
        names, lengths = table.stacked(GRADIENTS)
        factors = _factors(names, lengths[..., None], rates)
        table.settle(UPDATES, names, lengths * factors * factors)


def _factors(
    names: tuple[str, ...], numbers: npt.NDArray[np.float64], steps: Sequence[Mapping[str, float]]
) -> npt.NDArray[np.float64]:
    """Return the factor of every parameter, [P] or [S, P], for numbers [P, N] or [S, P, N]."""
    found = np.array([[values.get(name, 0.0) for name in names] for values in steps])
    return found if numbers.ndim > 2 else found[0]
