"""Bin adaptation: how a histogram's range follows the data.

A policy looks at a step after its histogram was taken and sets the range from the next one on. Ranges are stored
with every histogram, so a series may mix them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from cockpit.engine.needs import Known, Need
from cockpit.engine.statistics import AbsMax, Quantiles
from cockpit.quantities.quantity import Observation
from cockpit.schedule import Schedule, as_schedule, every

Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Adaptation(ABC):
    """A policy; ``padding`` widens the range by that share, ``min_size`` is its smallest width.

    With ``widen_only`` a range never shrinks.
    """

    when: Schedule = field(default=every(1))
    padding: float = 0.0
    min_size: float = 1e-6
    widen_only: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", as_schedule(self.when))

    @property
    def needs(self) -> Iterable[Need]:
        """What the policy needs of the step."""
        return ()

    @abstractmethod
    def extent(self, o: Observation) -> Range:
        """Return the range the data ask for."""

    def adapted(self, old: Range, o: Observation) -> Range:
        """Return the range from the next histogram on."""
        low, high = self.extent(o)
        half = self.min_size / 2
        low, high = (1 + self.padding) * min(low, -half), (1 + self.padding) * max(high, half)
        return (min(low, old[0]), max(high, old[1])) if self.widen_only else (low, high)


@dataclass(frozen=True, eq=False)
class NoAdaptation(Adaptation):
    """Leave the range as it is."""

    def extent(self, o: Observation) -> Range:
        """Not asked."""
        raise NotImplementedError

    def adapted(self, old: Range, o: Observation) -> Range:
        """Return the old range."""
        return old


@dataclass(frozen=True, eq=False)
class GradAbsMax(Adaptation):
    r"""Range $\pm(1+\text{padding})\,\max_{nj}|g_{nj}|$ over finite elements."""

    needs = (AbsMax(),)

    def extent(self, o: Observation) -> Range:
        """Return the largest individual gradient element, on both sides."""
        m = float(o.statistics.total(AbsMax()))
        return -m, m


@dataclass(frozen=True, eq=False)
class ParamAbsMax(Adaptation):
    r"""Range $\pm(1+\text{padding})\,\max_j|\theta_j|$ over finite elements."""

    needs = (Known.PARAMETERS,)

    def extent(self, o: Observation) -> Range:
        """Return the largest parameter, on both sides."""
        m = max(
            float(p[p.isfinite()].abs().amax()) if p.isfinite().any() else 0.0
            for p in o[Known.PARAMETERS].values()
        )
        return -m, m


@dataclass(frozen=True, eq=False)
class GradQuantile(Adaptation):
    """Range between two quantiles of the gradient elements, each side for itself: outliers do not widen it."""

    share: float = 1e-3

    @property
    def needs(self) -> Iterable[Need]:
        """The two quantiles, of the parameter where they are widest."""
        return (Quantiles(self.share),)

    def extent(self, o: Observation) -> Range:
        """Return both quantiles."""
        low, high = o.statistics.total(Quantiles(self.share)).tolist()
        return -low, high
