r"""Sums of squared individual gradients for given output gradients, by the same ways as the watched pass.

This is what GGN diagonals are made of: $\sum_n (J_n^\top v_n)^2$ with one backward pass from the model's outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.engine.batch import Batch
from cockpit.engine.capture import Capture
from cockpit.engine.coverage import Plan
from cockpit.engine.ggn import SquareSums
from cockpit.engine.loss_graph import LossGraph
from cockpit.engine.statistics import SquareSum
from cockpit.engine.table import Table


def square_sums(
    capture: Capture,
    losses: Tensor,
    outputs: tuple[Tensor, ...],
    plan: Plan,
    parameters: Mapping[str, Tensor],
) -> SquareSums:
    """Return the function from output gradients v to the sums by parameter."""

    def sums(vectors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        scratch = Table(parameters)
        batch = Batch(capture, plan, parameters, len(losses), scratch, [SquareSum()], {})
        batch.weights = torch.ones_like(losses)
        chosen = [k for k, v in enumerate(vectors) if bool(v.any())]
        if chosen:
            ours, theirs = [outputs[k] for k in chosen], [vectors[k] for k in chosen]
            with capture.receive(batch.receive):
                torch.autograd.grad(
                    ours, list(parameters.values()), theirs, retain_graph=True, allow_unused=True
                )
            if any(c.way.by_graph for c in plan.ways.values()):
                graph = LossGraph(losses, outputs, parameters)
                with torch.enable_grad():
                    weighted = [x * vectors[k] for x, k in zip(graph.outputs, graph.places, strict=True)]
                    batch.serve(graph.rows(weighted).sum(1))
        batch.end()
        scratch.close([SquareSum()])
        scratch.total_exists(SquareSum())
        return scratch.by_parameter(SquareSum())

    return sums
