r"""Parameters that are spread over the examples: positions added to every sequence, tokens put in front of each.

Such a parameter, or a layer's output without an example axis, meets the examples in a sum or an expansion. There its
gradient has one row for each example, $\delta_n$, of which autograd then takes the sum. So the individual gradients are
the rows, taken where they are still apart: by a hook on that node of the graph. Position tables are thereby served
like any other layer; without this they would take a backward pass for every example.

Whether that is all of the gradient is not assumed but checked, as for every formula (`cockpit.engine.coverage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cockpit.engine.capture import Use
from cockpit.engine.graph import edge, edges_behind
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.parts import Dense, Part

SPREADING = ("AddBackward0", "ExpandBackward0")
"""Operations whose result has an example axis where an operand has none."""
PASSING = ("UnsqueezeBackward0",)
"""Operations on the way there that only move axes of length one."""


@dataclass(frozen=True, eq=False)
class Spread:
    """Where a parameter meets the examples: at this node of the graph, by itself or as the output of a layer."""

    node: Node
    shape: torch.Size
    use: Use | None

    def part(self, name: str, grads: Tensor, keep: Tensor | None = None) -> Part:
        """Return the individual gradients from those that arrive at the node, [N, …]."""
        rows = _rows(grads, self.shape)
        if self.use is None:
            return Dense(rows if keep is None else rows[keep])
        attribute = name.rpartition(".")[2]
        examples = len(grads)
        args = tuple(x.expand(examples, *x.shape) if isinstance(x, Tensor) else x for x in self.use.args)
        call = Call(self.use.module, args, self.use.kwargs, (rows,), examples, (Layout(),), keep)
        return self.use.formula.parts(call)[attribute]


def _rows(grads: Tensor, shape: torch.Size) -> Tensor:
    """Return [N, *shape] from gradients [N, …]: summed over whatever else the operand was spread over."""
    target = (1,) * (grads.ndim - len(shape)) + tuple(shape)
    if len(target) != grads.ndim or target[0] != 1:
        raise ValueError(f"a shape {tuple(shape)} that meets no examples in {tuple(grads.shape)}")
    axes = [k for k in range(1, grads.ndim) if target[k] == 1 and grads.shape[k] > 1]
    summed = grads.sum(axes, keepdim=True) if axes else grads
    return summed.reshape(len(grads), *shape)


def spreads(losses: Tensor, parameters: Mapping[str, Tensor], uses: Iterable[Use]) -> dict[str, Spread]:
    """Find where parameters meet the examples; those that do so in another way, or more than once, are left out."""
    start = edge(losses)
    if start is None or not parameters:
        return {}
    above: dict[Node, list[Node]] = {}
    for here in {node for node, _ in edges_behind([start])}:
        for below, _ in here.next_functions:
            if below is not None:
                above.setdefault(below, []).append(here)
    found: dict[str, Spread] = {}
    calls = list(uses)
    for name, p in parameters.items():
        own = edge(p)
        callers = [use for use in calls if any(q is p for q in use.module.parameters(recurse=False))]
        if own is None or len(callers) > 1:
            continue
        use = callers[0] if callers else None
        node: Node | None = _only(above, own[0])
        if use is not None and node is not None:  # past the layer itself
            node = _only(above, node)
        while node is not None and node.name() in PASSING:
            node = _only(above, node)
        if node is not None and node.name() in SPREADING:
            found[name] = Spread(node, p.shape if use is None else use.shapes[0], use)
    return found


def _only(above: Mapping[Node, list[Node]], node: Node) -> Node | None:
    """Return the one node that a gradient comes from, or None if there are several."""
    nodes = above.get(node, [])
    return nodes[0] if len(nodes) == 1 else None
