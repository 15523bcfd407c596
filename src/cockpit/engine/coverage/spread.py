r"""Parameters that are spread over the examples: positions added to every sequence, tokens put in front of each.

Such a parameter, or a layer's output without an example axis, meets the examples in a sum or an expansion. There its
gradient has one row for each example, $\delta_n$, of which autograd then takes the sum. So the individual gradients are
the rows, taken where they are still apart: by a hook on that node of the graph. Position tables are thereby served
like any other layer; without this they would take a backward pass for every example.

Whether that is all of the gradient is not assumed but checked, as for every formula
(`cockpit.engine.coverage.examination`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cockpit.engine.derivatives.graph import edge
from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.layers.formula import Call, Layout
from cockpit.engine.seeing.use import Use

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


Path = tuple[int, ...]
"""The way through a graph to a node: which input to follow at every node, from the losses on."""


def spreads(
    losses: Tensor,
    parameters: Mapping[str, Tensor],
    uses: Iterable[Use],
    paths: dict[str, Path] | None = None,
) -> dict[str, Spread]:
    """Find where parameters meet the examples; those that do so in another way, or more than once, are left out.

    ``paths`` are those of a graph that was alike: where they lead to such a meeting, the graph is not searched again.
    They are renewed otherwise.
    """
    start = edge(losses)
    if start is None or not parameters:
        return {}
    calls, paths = list(uses), {} if paths is None else paths
    found = {name: _followed(start[0], paths.get(name), p, calls) for name, p in parameters.items()}
    if all(spread is not None for spread in found.values()):
        return {name: spread for name, spread in found.items() if spread is not None}
    return _searched(start[0], parameters, calls, paths)


def _searched(
    start: Node, parameters: Mapping[str, Tensor], calls: list[Use], paths: dict[str, Path]
) -> dict[str, Spread]:
    above: dict[Node, list[tuple[Node, int]]] = {start: []}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for k, (below, _) in enumerate(here.next_functions):
            if below is not None:
                if below not in above:
                    waiting.append(below)
                above.setdefault(below, []).append((here, k))
    found: dict[str, Spread] = {}
    for name, p in parameters.items():
        own, (known, use) = edge(p), _caller(p, calls)
        if own is None or not known:
            continue
        node = _only(above, own[0])
        if use is not None and node is not None:  # past the layer itself
            node = _only(above, node)
        while node is not None and node.name() in PASSING:
            node = _only(above, node)
        if node is not None and node.name() in SPREADING:
            found[name] = _spread(node, p, use)
            paths[name] = _path(above, node)
    return found


def _followed(start: Node, path: Path | None, p: Tensor, calls: list[Use]) -> Spread | None:
    """Go the way of another graph; None if it does not lead to where the parameter meets the examples."""
    known, use = _caller(p, calls)
    if path is None or not known:
        return None
    node: Node | None = start
    for k in path:
        inputs = () if node is None else node.next_functions
        node = inputs[k][0] if k < len(inputs) else None
    own = edge(p)
    if node is None or own is None or node.name() not in SPREADING:
        return None
    below = [_past(n) for n, _ in node.next_functions]
    if use is not None:  # through the layer itself
        below = [n for b in below if b is not None for n, _ in b.next_functions]
    return _spread(node, p, use) if own[0] in below else None


def _past(node: Node | None) -> Node | None:
    """Go on to the first node that does more than move axes."""
    while node is not None and node.name() in PASSING:
        node = node.next_functions[0][0]
    return node


def _caller(p: Tensor, calls: list[Use]) -> tuple[bool, Use | None]:
    """Return whether it is clear who uses a parameter, and the call of a layer that does (None: no layer)."""
    callers = [use for use in calls if any(q is p for q in use.module.parameters(recurse=False))]
    return len(callers) < 2, callers[0] if callers else None


def _spread(node: Node, p: Tensor, use: Use | None) -> Spread:
    return Spread(node, p.shape if use is None else use.shapes[0], use)


def _path(above: Mapping[Node, list[tuple[Node, int]]], node: Node) -> Path:
    path: list[int] = []
    while above[node]:
        node, k = above[node][0]
        path.append(k)
    return tuple(reversed(path))


def _only(above: Mapping[Node, list[tuple[Node, int]]], node: Node) -> Node | None:
    """Return the one node that a gradient comes from, or None if there are several."""
    nodes = above.get(node, [])
    return nodes[0][0] if len(nodes) == 1 else None
