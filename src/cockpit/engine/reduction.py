"""Reducing one parameter's individual gradients to all statistics asked for, with as few looks as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cockpit.engine import kernels
from cockpit.engine.binning import Grid
from cockpit.engine.gradients import ExampleGradients
from cockpit.engine.histograms import Histogram1d
from cockpit.engine.kernels.trial import tried
from cockpit.engine.statistics import Join, Norm2, Projection, Quantiles, SquareSum, Statistic, joined

Directions = Mapping[Projection, tuple[Tensor, float | Tensor]]
"""For every projection its direction, as a vector and a factor."""


def reductions(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> Iterator[tuple[Statistic, Tensor]]:
    """Yield (statistic, value). If one of them needs the gradients written out, it shares them with the others."""
    walking = [s for s in statistics if s.walks(g)] if g.fast else []
    if walking:
        walking += [s for s in statistics if isinstance(s, Projection) and s in directions]
        if kernels.runs_on(g.parameter):  # whose looks tell the norms as well
            walking += [s for s in statistics if isinstance(s, Norm2) and s not in walking]
        yield from _walk(g, walking, directions)
    for statistic in statistics:
        if statistic in walking:
            continue
        if isinstance(statistic, Projection) and statistic in directions:
            vector, factor = directions[statistic]
            yield statistic, g.dot(vector) * factor
        else:
            yield statistic, statistic.reduce(g)


def _walk(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> Iterator[tuple[Statistic, Tensor]]:
    products = tried("products", partial(_multiplied, g, statistics, directions))
    if products:
        yield from products.items()
        return
    whole = any(isinstance(s, Quantiles) for s in statistics)
    found: dict[Statistic, list[Tensor]] = {s: [] for s in statistics}
    for block in g.blocks(whole):
        flat = block.reshape(len(block), g.parameter.numel())
        fused = tried("block", partial(_fused, flat, statistics, directions)) or {}
        for s in statistics:
            if s in fused:
                value: Tensor | None = fused[s]
            elif isinstance(s, Projection):
                vector, factor = directions[s]
                value = (flat @ vector.reshape(-1).to(flat)) * factor
            else:
                value = s.of_block(flat, g)
            assert value is not None
            if s.over_examples is Join.SUM and found[s]:  # those may be as large as the parameter
                found[s][0] += value
            else:
                found[s].append(value)
    for s, values in found.items():
        yield s, joined(s.over_examples, values)


def _multiplied(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> dict[Statistic, Tensor]:
    """Take everything from the factors by one kernel that multiplies and looks; empty where it cannot be."""
    simple = all(isinstance(s, Norm2 | Projection | Histogram1d | SquareSum) for s in statistics)
    if not simple or len(g.parts) != 1 or not kernels.runs_on(g.parameter):
        return {}
    squares = None
    if SquareSum() in statistics:
        squares = torch.zeros(g.parameter.shape, dtype=torch.float32, device=g.parameter.device)
    found: dict[Statistic, list[Tensor]] = {}
    for products in g.parts[0].products():
        look = partial(kernels.product_statistics, products, squares=squares)
        seen = _seen(products.b, statistics, directions, look)
        if any(s not in seen for s in statistics if not isinstance(s, SquareSum)):
            return {}
        for s, value in seen.items():
            found.setdefault(s, []).append(value)
    if found and squares is not None:
        found[SquareSum()] = [squares]
    return {s: joined(s.over_examples, found[s]) for s in statistics if s in found}


def _fused(flat: Tensor, statistics: Sequence[Statistic], directions: Directions) -> dict[Statistic, Tensor]:
    """Take norms, projections and a histogram from one look at a block, where there is a kernel for it."""
    if flat.dtype is not torch.float32:
        return {}
    return _seen(flat, statistics, directions, partial(kernels.block_statistics, flat))


def _seen(
    like: Tensor,
    statistics: Sequence[Statistic],
    directions: Directions,
    look: Callable[[Sequence[Tensor], Grid | None], tuple[Tensor, Tensor, Tensor | None]],
) -> dict[Statistic, Tensor]:
    """Return what a kernel that takes norms, projections and a histogram in one look says of the statistics."""
    projections = [s for s in statistics if isinstance(s, Projection)]
    histogram = next((s for s in statistics if isinstance(s, Histogram1d)), None)
    grid = None if histogram is None else histogram.grid
    if len(projections) > kernels.MOST_DIRECTIONS or not kernels.supports(grid or Grid(1, -1.0, 1.0), like):
        return {}
    norm2, dots, counts = look([directions[s][0].reshape(-1).float() for s in projections], grid)
    found: dict[Statistic, Tensor] = {}
    for k, s in enumerate(projections):
        factor = directions[s][1]
        unchanged = isinstance(factor, float) and factor == 1.0  # a launch less
        found[s] = dots[:, k] if unchanged else dots[:, k] * factor
    found[Norm2()] = norm2
    if histogram is not None and counts is not None:
        found[histogram] = counts
    return found
