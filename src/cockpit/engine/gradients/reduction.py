"""Reducing one parameter's individual gradients to all statistics asked for, with as few looks as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cockpit.engine import kernels, native
from cockpit.engine.gradients.histograms import Histogram, Histogram1d, Histogram2d
from cockpit.engine.gradients.individual import ExampleGradients
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.kernels.trial import tried
from cockpit.engine.numbers.binning import Grid
from cockpit.engine.statistics import Join, Norm2, Projection, Quantiles, SquareSum, Statistic, joined

Directions = Mapping[Projection, tuple[Tensor, float | Tensor]]
"""For every projection its direction, as a vector and a factor."""
Look = Callable[[Sequence[Tensor], Grid | None], tuple[Tensor, Tensor, Tensor | None] | None]
"""Takes norms, projections on some vectors and counts in a grid."""

FEW = 2**21
"""Numbers in the gradients of all examples that are looked at in one call on a CPU: calls are what takes time then."""


def reductions(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> Iterator[tuple[Statistic, Tensor]]:
    """Yield (statistic, value). If one of them needs the gradients written out, it shares them with the others."""
    if g.fast and (seen := _at_once(g, statistics, directions)):
        yield from ((s, seen[s]) for s in statistics if s in seen)
        statistics = [s for s in statistics if s not in seen]
    walking = [s for s in statistics if s.walks(g)] if g.fast else []
    if walking:
        walking += [s for s in statistics if isinstance(s, Projection) and s in directions]
        if kernels.runs_on(g.parameter) or native.serves(g.parameter):  # whose looks tell the norms as well
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


def _at_once(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> dict[Statistic, Tensor]:
    """Take norms, projections and a histogram of a small parameter in one call on a CPU; empty where it cannot be."""
    few = len(g.parts) == 1 and g.examples * g.parameter.numel() <= FEW
    if not few or g.parameter.device.type != "cpu" or kernels.runs_on(g.parameter):
        return {}
    if not any(isinstance(s, Norm2 | Histogram1d) or s in directions for s in statistics):
        return {}
    if (factors := g.factors_of_one_use()) is not None:
        like, look = factors[1], partial(native.outer_statistics, *factors)
    elif isinstance(part := g.parts[0], Dense):
        like = part.written.reshape(g.examples, g.parameter.numel())
        look = partial(native.block_statistics, like, factor=part.factor)
    else:
        return {}
    return _seen(like.dtype, statistics, directions, look)


def _walk(
    g: ExampleGradients, statistics: Sequence[Statistic], directions: Directions
) -> Iterator[tuple[Statistic, Tensor]]:
    products = tried("products", partial(_multiplied, g, statistics, directions))
    if products:
        yield from products.items()
        return
    whole = any(isinstance(s, Quantiles) for s in statistics)
    plain = all(isinstance(s, SquareSum) for s in statistics)  # which a fused look does not tell
    found: dict[Statistic, list[Tensor]] = {s: [] for s in statistics}
    for block in g.blocks(whole):
        flat = block.reshape(len(block), g.parameter.numel())
        fused = {} if plain else tried("block", partial(_fused, flat, statistics, directions)) or {}
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
    simple = all(isinstance(s, Norm2 | Projection | Histogram | SquareSum) for s in statistics)
    if not simple or len(g.parts) != 1 or not kernels.runs_on(g.parameter):
        return {}
    placed = {s: s.columns(g) for s in statistics if isinstance(s, Histogram2d)}
    squares = None
    if SquareSum() in statistics:
        squares = torch.zeros(g.parameter.shape, dtype=torch.float32, device=g.parameter.device)
    found: dict[Statistic, list[Tensor]] = {}
    for products in g.parts[0].products():
        if not all(kernels.supports(joint.grid, products.b) for joint in placed):
            return {}
        seen: dict[Statistic, Tensor] = {}
        for joint, place in placed.items():  # a look of its own: a program can hold no more counters
            seen[Norm2()], _, counts = kernels.product_statistics(products, grid=joint.grid, place=place)
            seen |= {} if counts is None else {joint: counts}
        others = [s for s in statistics if s not in seen]
        if others == [SquareSum()]:
            kernels.product_statistics(products, squares=squares, norms=False)
        elif others:
            look = partial(kernels.product_statistics, products, squares=squares)
            seen |= _seen_by_kernel(products.b, others, directions, look)
        if any(s not in seen for s in statistics if not isinstance(s, SquareSum)):
            return {}
        for s, value in seen.items():
            found.setdefault(s, []).append(value)
    if found and squares is not None:
        found[SquareSum()] = [squares]
    return {s: joined(s.over_examples, found[s]) for s in statistics if s in found}


def _fused(flat: Tensor, statistics: Sequence[Statistic], directions: Directions) -> dict[Statistic, Tensor]:
    """Take norms, projections and a histogram from one look at a block, where there is a kernel for it."""
    if flat.device.type == "cpu" and not kernels.runs_on(flat):
        return _seen(flat.dtype, statistics, directions, partial(native.block_statistics, flat))
    if flat.dtype is not torch.float32:
        return {}
    return _seen_by_kernel(flat, statistics, directions, partial(kernels.block_statistics, flat))


def _seen_by_kernel(
    like: Tensor, statistics: Sequence[Statistic], directions: Directions, look: Look
) -> dict[Statistic, Tensor]:
    """Return what a kernel of a GPU says of the statistics, in single precision; nothing where it cannot."""
    grid = next((s.grid for s in statistics if isinstance(s, Histogram1d)), Grid(1, -1.0, 1.0))
    projections = sum(isinstance(s, Projection) for s in statistics)
    if projections > kernels.MOST_DIRECTIONS or not kernels.supports(grid, like):
        return {}
    return _seen(torch.float32, statistics, directions, look)


def _seen(
    dtype: torch.dtype, statistics: Sequence[Statistic], directions: Directions, look: Look
) -> dict[Statistic, Tensor]:
    """Return what somebody who takes norms, projections and a histogram in one look says of the statistics."""
    projections = [s for s in statistics if isinstance(s, Projection) and s in directions]
    histogram = next((s for s in statistics if isinstance(s, Histogram1d)), None)
    vectors = [directions[s][0].reshape(-1).to(dtype) for s in projections]
    told = look(vectors, None if histogram is None else histogram.grid)
    if told is None:
        return {}
    norm2, dots, counts = told
    found: dict[Statistic, Tensor] = {}
    for k, s in enumerate(projections):
        factor = directions[s][1]
        unchanged = isinstance(factor, float) and factor == 1.0  # a launch less
        found[s] = dots[:, k] if unchanged else dots[:, k] * factor
    found[Norm2()] = norm2
    if histogram is not None and counts is not None:
        found[histogram] = counts
    return found
