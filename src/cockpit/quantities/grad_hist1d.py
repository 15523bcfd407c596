"""Histogram of individual gradient elements."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from cockpit.engine.binning import edges
from cockpit.engine.needs import Need
from cockpit.engine.statistics import Histogram1d
from cockpit.quantities.bins import Adaptation, NoAdaptation, Range
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading
from cockpit.store.record import Histogram


@dataclass(frozen=True, eq=False)
class GradHist1d(Quantity):
    """Histogram of all individual gradient elements $g_{nj}$, per parameter and in all.

    Integer counts; what lies outside the range or is not finite is counted apart. ``adapt`` lets the range follow
    the data.
    """

    bins: int = 100
    range: Range = (-2.0, 2.0)
    adapt: Adaptation | None = None
    by_parameter: bool = field(default=True, kw_only=True)

    def _statistic(self, memory: Memory) -> Histogram1d:
        low, high = memory.get("range", self.range)
        return Histogram1d(self.bins, float(low), float(high))

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        policy = self.adapt or NoAdaptation()
        return (self._statistic(memory), *(policy.needs if policy.when(step) else ()))

    def compute(self, o: Observation) -> Reading:
        statistic = self._statistic(o.memory)
        parts = o.statistics.by_parameter(statistic)
        each = {n: self._histogram(c, statistic, o) for n, c in parts.items()} if self.by_parameter else {}
        whole = self._histogram(o.statistics.total(statistic), statistic, o)
        policy = self.adapt or NoAdaptation()
        if policy.when(o.step):
            o.memory["range"] = policy.adapted((statistic.low, statistic.high), o)
        return Reading(whole, each)

    def _histogram(self, counts: Tensor, s: Histogram1d, o: Observation) -> Histogram:
        edge = edges(s.bins, s.low, s.high, counts.device).double().cpu().numpy().copy()
        whole = counts.cpu().numpy().astype(np.int64)
        return Histogram(whole[: s.bins], edge, *(int(k) for k in whole[s.bins :]))
