"""Bunch: small parameters (biases, norms) wait until the backward pass is over and are looked at all together.

A model of a hundred layers has as many biases, whose few numbers take the host as long as the large weights do. Written
out, they fit side by side into one block, which one kernel reduces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.gradients.histograms import Histogram1d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.gradients.reduction import Directions, reductions
from cockpit.engine.kernels import trial
from cockpit.engine.numbers.binning import Grid
from cockpit.engine.statistics import Norm2, Projection, Statistic

KERNEL = "segments"
"""The kernel's name, should it be refused."""
LARGEST = 8192
"""Numbers in a parameter that waits."""

Asked = tuple[ExampleGradients, Directions]


class Bunch:
    """The parameters that wait, with what is asked of them."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[tuple[Statistic, ...], int], list[Asked]] = {}

    @property
    def names(self) -> set[str]:
        """The parameters that wait."""
        return {g.name for asked in self._waiting.values() for g, _ in asked}

    def takes(self, g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions) -> bool:
        """Let a parameter wait, if it is one that can; return whether it does."""
        part = g.parts[0]
        if KERNEL in trial.refused:  # then nobody waits
            return False
        if not g.fast or len(g.parts) != 1 or not isinstance(part, Dense) or g.parameter.numel() > LARGEST:
            return False
        if part.written.dtype is not torch.float32 or not kernels.runs_on(part.written):
            return False
        projections = [s for s in statistics if isinstance(s, Projection)]
        histograms = [s for s in statistics if isinstance(s, Histogram1d)]
        known = len(projections) + len(histograms) + (Norm2() in statistics)
        if known < len(statistics) or len(histograms) > 1 or len(projections) > kernels.MOST_DIRECTIONS:
            return False
        grid = histograms[0].grid if histograms else Grid(1, -1.0, 1.0)
        if not statistics or not kernels.supports(grid, part.written):
            return False
        if any(isinstance(directions[s][1], Tensor) for s in projections):
            return False
        key = (tuple(statistics), g.examples)
        self._waiting.setdefault(key, []).append((g, directions))
        return True

    def reductions(self) -> Iterator[tuple[str, Statistic, Tensor]]:
        """Yield (parameter, statistic, value) of all that waited."""
        waiting, self._waiting = self._waiting, {}
        for (statistics, _), asked in waiting.items():
            found = trial.tried(KERNEL, partial(_reduced, statistics, asked))
            if found is None:  # each by itself, then
                for g, directions in asked:
                    yield from ((g.name, *one) for one in reductions(g, statistics, directions))
            else:
                yield from found


def _reduced(statistics: tuple[Statistic, ...], asked: list[Asked]) -> list[tuple[str, Statistic, Tensor]]:
    parts = [part for g, _ in asked for part in g.parts if isinstance(part, Dense)]
    sizes = tuple(part.shape.numel() for part in parts)
    factor = parts[0].factor
    if any(part.factor != factor for part in parts):
        together = torch.cat([part.gradients.flatten(1) for part in parts], 1)
    else:
        together = _joined([part.written.flatten(1) for part in parts], factor)
    projections = [s for s in statistics if isinstance(s, Projection)]
    histogram = next((s for s in statistics if isinstance(s, Histogram1d)), None)
    vectors = [_side_by_side([directions[s] for _, directions in asked]) for s in projections]
    norm2, dots, counts = kernels.segment_statistics(
        together, sizes, vectors, None if histogram is None else histogram.grid
    )
    values: dict[Statistic, Tensor] = {s: dots[:, :, k] for k, s in enumerate(projections)} | {Norm2(): norm2}
    if histogram is not None and counts is not None:
        values[histogram] = counts
    return [
        (g.name, statistic, value)
        for statistic in statistics
        for (g, _), value in zip(asked, values[statistic].unbind(0), strict=True)
    ]


def _side_by_side(directions: list[tuple[Tensor, float | Tensor]]) -> Tensor:
    """Return directions, each times its factor, as one vector."""
    vectors = [vector.detach().reshape(-1).float() for vector, _ in directions]
    factors = [float(factor) for _, factor in directions]
    if len(set(factors)) > 1:
        return torch.cat(torch._foreach_mul(vectors, factors))
    return _joined(vectors, factors[0])


def _joined(tensors: list[Tensor], factor: float) -> Tensor:
    """Return tensors side by side, times a factor; one alone is not copied first."""
    return tensors[0] * factor if len(tensors) == 1 else torch.cat(tensors, -1).mul_(factor)
