"""Joint histogram of individual gradient elements and parameters."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cockpit.engine.gradients.histograms import Histogram2d
from cockpit.engine.needs import Need
from cockpit.engine.numbers.binning import edge_array
from cockpit.quantities.bins import Adaptation, NoAdaptation, Range
from cockpit.quantities.quantity import Memory, Observation, Quantity, Reading, Readings
from cockpit.store.record import Histogram, Histograms


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

    @property
    def stretches(self) -> bool:
        return not self.adaptive

    @property
    def adaptive(self) -> bool:
        return self.adapt != (None, None)

    def request(self, memory: Memory, step: int) -> Iterable[Need]:
        return (self._statistic(memory), *(need for policy in self._due(step) for need in policy.needs))

    def compute(self, o: Observation) -> Reading:
        statistic = self._statistic(o.memory)
        o.statistics.total_exists(statistic)
        names, counts = o.statistics.stacked(statistic)
        (rows, columns), cut = self.bins, self.bins[0] * self.bins[1]
        both = (
            edge_array(rows, *statistic.gradient_range),
            edge_array(columns, *statistic.parameter_range),
        )
        inside = counts[..., :cut].reshape(*counts.shape[:-1], rows, columns)
        outside = counts[..., cut:]
        whole, beyond = inside.sum(-3), outside.sum(-2).tolist()
        if counts.ndim > 2:  # a stretch of steps
            parts = [Histograms(names, a, both, b) for a, b in zip(inside, outside, strict=True)]
            together = [Histogram(a, both, *b) for a, b in zip(whole, beyond, strict=True)]
            return Readings(together, parts if self.by_parameter else None)
        each = Histograms(names, inside, both, outside) if self.by_parameter else {}
        first, second = self._due(o.step)
        o.memory["range"] = (
            first.adapted(statistic.gradient_range, o),
            second.adapted(statistic.parameter_range, o),
        )
        return Reading(Histogram(whole, both, *beyond), each)
