"""Joint histogram of individual gradient elements and parameters."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from cockpit.engine.binning import edges
from cockpit.engine.needs import Known, Need
from cockpit.engine.statistics import Histogram2d
from cockpit.quantities.bins import Adaptation, NoAdaptation, Range
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading
from cockpit.store.record import Histogram


@dataclass(frozen=True, eq=False)
class GradHist2d(Quantity):
    r"""Joint histogram of $(g_{nj}, \theta_j)$, per parameter and in all; first axis gradient, second parameter.

    Integer counts. Gradients outside their range or not finite are counted apart; parameters outside theirs fall
    into the outer bins. ``adapt`` holds one policy for each axis.
    """

    bins: tuple[int, int] = (40, 50)
    range: tuple[Range, Range] = ((-1.0, 1.0), (-2.0, 2.0))
    adapt: tuple[Adaptation | None, Adaptation | None] = (None, None)
    by_parameter: bool = field(default=True, kw_only=True)

    def _statistic(self, memory: Memory) -> Histogram2d:
        g, theta = memory.get("range", self.range)
        return Histogram2d(self.bins, (float(g[0]), float(g[1])), (float(theta[0]), float(theta[1])))

    def _due(self, step: int) -> list[Adaptation]:
        policies = [policy or NoAdaptation() for policy in self.adapt]
        return [policy if policy.when(step) else NoAdaptation() for policy in policies]

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        own = (self._statistic(memory), Known.PARAMETERS)
        return (*own, *(need for policy in self._due(step) for need in policy.needs))

    def compute(self, o: Observation) -> Reading:
        statistic = self._statistic(o.memory)
        parts = o.statistics.by_parameter(statistic)
        each = {n: self._histogram(c, statistic, o) for n, c in parts.items()} if self.by_parameter else {}
        whole = self._histogram(o.statistics.total(statistic), statistic, o)
        first, second = self._due(o.step)
        o.memory["range"] = (
            first.adapted(statistic.gradient_range, o),
            second.adapted(statistic.parameter_range, o),
        )
        return Reading(whole, each)

    def _histogram(self, counts: Tensor, s: Histogram2d, o: Observation) -> Histogram:
        rows, columns = s.bins
        both = (
            edges(rows, *s.gradient_range, counts.device).double().cpu().numpy().copy(),
            edges(columns, *s.parameter_range, counts.device).double().cpu().numpy().copy(),
        )
        whole = counts.cpu().numpy().astype(np.int64)
        inside = whole[: rows * columns].reshape(rows, columns)
        return Histogram(inside, both, *(int(k) for k in whole[rows * columns :]))
