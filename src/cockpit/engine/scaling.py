"""Scaling: numbers of a recorded step that follow from others by factors known on the host only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cockpit.engine.requests import GRADIENTS, LAST, MEAN, UPDATE, UPDATES
from cockpit.engine.table import Table


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
        if table.has(LAST):
            names, slopes = table.stacked(LAST)
            table.settle(LAST, names, slopes * _column(names, self.last))
        if self.rates is None:
            return
        if table.has(MEAN):
            names, slopes = table.stacked(MEAN)
            table.settle(UPDATE, names, slopes * -_column(names, self.rates))
        if table.has(GRADIENTS):
            names, lengths = table.stacked(GRADIENTS)
            rates = _column(names, self.rates)[:, 0]
            table.settle(UPDATES, names, lengths * rates * rates)


def _column(names: tuple[str, ...], values: Mapping[str, float]) -> npt.NDArray[np.float64]:
    return np.array([values.get(name, 0.0) for name in names])[:, None]
