"""Histogram of individual gradient elements."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.needs import Need
from cockpit.engine.numbers.binning import edge_array
from cockpit.quantities.bins import Adaptation, NoAdaptation, Range
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading, Readings
from cockpit.store.record import Histogram, Histograms


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

    @property
    def stretches(self) -> bool:
        return self.adapt is None

    @property
    def adaptive(self) -> bool:
        return self.adapt is not None

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        policy = self.adapt or NoAdaptation()
        return (self._statistic(memory), *(policy.needs if policy.when(step) else ()))

    def compute(self, o: Observation) -> Reading:
        statistic = self._statistic(o.memory)
        o.statistics.total_exists(statistic)
        names, counts = o.statistics.stacked(statistic)
        edge = edge_array(statistic.bins, statistic.low, statistic.high)
        inside, outside = counts[..., : self.bins], counts[..., self.bins :]
        whole, beyond = inside.sum(-2), outside.sum(-2).tolist()
        if counts.ndim > 2:  # a stretch of steps
            each = [Histograms(names, a, edge, b) for a, b in zip(inside, outside, strict=True)]
            together = [Histogram(a, edge, *b) for a, b in zip(whole, beyond, strict=True)]
            return Readings(together, each if self.by_parameter else None)
        policy = self.adapt
        if policy is not None and policy.when(o.step):
            o.memory["range"] = policy.adapted((statistic.low, statistic.high), o)
        alone = Histogram(whole, edge, *beyond)
        return Reading(alone, Histograms(names, inside, edge, outside) if self.by_parameter else {})
