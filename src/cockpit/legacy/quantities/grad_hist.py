"""Histograms of individual gradient elements; what lies outside the range is counted in the outer bins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cockpit.engine.gradients.histograms import Histogram2d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.statistics import Elementwise
from cockpit.legacy.quantities.bin_adaptation import NoAdaptation
from cockpit.legacy.quantities.measured import MeasuredNow
from cockpit.quantities import grad_hist1d, grad_hist2d
from cockpit.quantities.bins import Adaptation, Range
from cockpit.quantities.quantity import Memory, Reading
from cockpit.store.record import Histogram

Adapt = Adaptation | None


class GradHist1d(MeasuredNow):
    """Histogram of individual gradient elements: ``{"hist": [bins], "edges": [bins + 1]}`` in float32."""

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        bins: int = 100,
        range: Range = (-2, 2),
        adapt: Adapt = None,
    ) -> None:
        self._adapt = adapt or NoAdaptation()
        source = grad_hist1d.GradHist1d(bins, range, self._adapt, by_parameter=False)
        super().__init__(track_schedule, verbose, source)
        self._bins, self._first = bins, range

    @property
    def _range(self) -> Range:
        found: Range = self.memory.get("range", self._first)
        return found

    def due(self, global_step: int) -> bool:
        """Say whether a step must be measured: a policy may adapt the range between two histograms."""
        return super().due(global_step) or self._adapt.when(global_step)

    def _stored(self, reading: Reading, names: Sequence[str]) -> dict[str, Any]:
        found = reading.value
        assert isinstance(found, Histogram)
        assert isinstance(found.edges, np.ndarray)
        counts = found.counts.copy()
        counts[0] += found.underflow
        counts[-1] += found.overflow
        return {"hist": counts.astype(np.float32), "edges": found.edges.astype(np.float32)}


@dataclass(frozen=True)
class Folded(Histogram2d):
    """The joint histogram with gradients outside their range counted in the outer bins of their column."""

    def walks(self, g: ExampleGradients) -> bool:
        """Say yes: elements are moved before they are counted."""
        return True

    def of_block(self, block: Tensor, g: ExampleGradients) -> Tensor:
        """Return [bins_0 · bins_1 + EXTRA] int64."""
        return super().of_block(block.clamp(*self.gradient_range), g)

    def reduce(self, g: ExampleGradients) -> Tensor:
        """Join the blocks."""
        return Elementwise.reduce(self, g)


@dataclass(frozen=True, eq=False)
class _FoldedHist2d(grad_hist2d.GradHist2d):
    def _statistic(self, memory: Memory) -> Histogram2d:
        s = super()._statistic(memory)
        return Folded(s.bins, s.gradient_range, s.parameter_range)


class GradHist2d(MeasuredNow):
    """Joint histogram: ``{"hist": int64 [bins_0, bins_1], "edges": (float32, float32)}``.

    With ``keep_individual`` also ``"param_groups"``, the number of parameters, and ``"param_0"``, … for each.
    """

    def __init__(
        self,
        track_schedule: Callable[[int], Any],
        verbose: bool = False,
        bins: tuple[int, int] = (40, 50),
        range: tuple[Range, Range] = ((-1, 1), (-2, 2)),
        adapt: tuple[Adapt, Adapt] = (None, None),
        keep_individual: bool = False,
    ) -> None:
        first, second = (a or NoAdaptation() for a in adapt)
        source = _FoldedHist2d((bins[0], bins[1]), range, (first, second), by_parameter=keep_individual)
        super().__init__(track_schedule, verbose, source)
        self._adapt = [first, second]
        self._bins, self._first, self._keep_individual = bins, range, keep_individual

    @property
    def _range(self) -> list[Range]:
        return list(self.memory.get("range", self._first))

    def due(self, global_step: int) -> bool:
        """Say whether a step must be measured: a policy may adapt the range between two histograms."""
        return super().due(global_step) or any(policy.when(global_step) for policy in self._adapt)

    def _stored(self, reading: Reading, names: Sequence[str]) -> dict[str, Any]:
        stored = _joint(reading.value)
        if self._keep_individual:
            stored["param_groups"] = len(names)
            for k, name in enumerate(names):
                if name in reading.by_parameter:
                    stored[f"param_{k}"] = _joint(reading.by_parameter[name])
        return stored


def _joint(found: Any) -> dict[str, Any]:
    assert isinstance(found, Histogram)
    return {"hist": found.counts, "edges": tuple(edge.astype(np.float32) for edge in found.edges)}
