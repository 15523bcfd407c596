r"""What the nodes of a cross-entropy with labels tell: no number of its outputs needs to be looked at for it.

With $\ell_n = \sum_t \kappa_{nt}\, \mathrm{CE}(f_{nt}, y_{nt})$ the weight $\kappa$ is the gradient that arrives at the
cross-entropy's own losses, one number for each position, and zero where the label is to be ignored. Read off the
gradient at the outputs it takes as many looks at all classes as the loss itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from cockpit.engine.curvature.hessian import differentiating
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.derivatives.derive import derivatives
from cockpit.engine.derivatives.graph import edge, edges_behind

CHOICE, SOFTMAX = "NllLossBackward0", "LogSoftmaxBackward0"
KEEPING = ("ToCopyBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
"""Operations that leave numbers as they are and where they are, one after the other."""


class Targets:
    """The two nodes of a cross-entropy with labels, its softmax and the choice of a class.

    Args:
        choice: the node that picks classes.
        softmax: that of the logarithms it picks from.
    """

    def __init__(self, choice: Any, softmax: Any) -> None:
        self._choice, self._softmax = choice, softmax

    @classmethod
    def of(cls, graph: LossGraph, axis: int) -> Targets | None:
        """Find them, if all that lies between the outputs and them keeps numbers in their places."""
        names, output = graph.operations[:-1], graph.outputs[0]
        if names.count(CHOICE) != 1 or names.count(SOFTMAX) != 1 or axis != output.ndim - 1:
            return None
        layout = graph.layouts[0]
        if len(graph.outputs) > 1 or layout.axis != 0 or layout.minor:
            return None
        start, end = edge(graph.losses), edge(output)
        assert start is not None
        assert end is not None
        choice: Any = start[0] if len(names) == 2 else _named(CHOICE, graph)
        softmax = choice.next_functions[0][0]
        if softmax is None or softmax.name() != SOFTMAX or choice._saved_weight is not None:
            return None
        here = softmax.next_functions[0]
        while here != end:
            if here[0] is None or here[0].name() not in KEEPING:
                return None
            here = here[0].next_functions[0]
        return cls(choice, softmax)

    def probabilities(self, like: Tensor) -> Tensor:
        """Return p of every position, shaped like the outputs [N, T, C], as the softmax kept it."""
        kept: Tensor = self._softmax._saved_result
        return kept.detach().exp().view(like.shape)

    def weights(self, graph: LossGraph, p: Tensor) -> Tensor:
        """Return κ of every position, [N, T]."""
        target = self._choice._saved_target
        counted: Tensor = (target != self._choice._saved_ignore_index).to(p.dtype)
        if edge(graph.losses) != (self._choice, 0):
            with differentiating(graph.device):
                ends = [GradientEdge(self._choice, 0)]
                (slope,) = derivatives(graph.losses, ends, torch.ones_like(graph.losses))
            counted = counted if slope is None else counted * slope.to(p.dtype)
        return counted.view(p.shape[:2])


def _named(name: str, graph: LossGraph) -> Any:
    """Return the only node of a name between outputs and losses."""
    walls = [e for e in map(edge, graph.outputs) if e is not None]
    starts = [e for e in (edge(graph.losses),) if e is not None]
    return next(node for node, _ in edges_behind(starts, walls) if node.name() == name)
