"""A walk back through a graph, whose nodes are called one by one, without autograd's engine.

They are called in an order in which every gradient is complete before it is passed on, and are the same functions.
Hooks on tensors are not called, and of nodes written in Python only ours are served: who walks compares the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from cockpit.engine.derivatives.graph import Edge
from cockpit.engine.derivatives.lean import LEAN, Call, Found, known_of
from cockpit.engine.derivatives.postponed import Incoming, Postponed, postponed
from cockpit.engine.derivatives.walked import called


class Walk:
    """One way back through a graph.

    Args:
        starts: the edges where gradients come in.
        ends: the edges whose gradients are wanted.
        create_graph: whether they can be derived again.
        postpones: whether those of weights may be found in `postponed` instead.
        batched: whether tensors have a further axis that they do not show.
    """

    def __init__(
        self,
        starts: Sequence[Edge],
        ends: Sequence[Edge],
        create_graph: bool,
        postpones: bool = False,
        batched: bool = False,
    ) -> None:
        self.starts, self.ends, self.create_graph = starts, ends, create_graph
        self.postponed: dict[Edge, list[Postponed]] = {}
        """What belongs to the wanted gradients as well."""
        self.batched, self._wanted = batched, frozenset(ends)
        self._postpones, self._overwrites = postpones, not (create_graph or batched)
        self.order = _order([node for node, _ in starts])
        self.leading = {node for node, _ in ends}
        """Nodes that a wanted gradient is at or behind."""
        for node in reversed(self.order):
            if any(behind in self.leading for behind, _ in node.next_functions):
                self.leading.add(node)

    def __call__(self, vectors: Sequence[Incoming]) -> Found:
        """Return the wanted gradients for those that come in."""
        arrived = Arrived(self._overwrites)
        for edge, vector in zip(self.starts, vectors, strict=True):
            arrived.expect(edge, vector)
        found: dict[Edge, Tensor] = {}
        with torch.set_grad_enabled(self.create_graph):
            for node in self.order:
                places = [(node, k) for k in range(len(known_of(node)._input_metadata))]
                mine = all(arrived.owns(place) for place in places)
                here = [arrived.take(place) for place in places]
                found.update(
                    {(node, k): g for k, g in enumerate(here) if g is not None and (node, k) in self._wanted}
                )
                passed = [behind in self.leading for behind, _ in node.next_functions]
                if not any(passed) or all(g is None for g in here):
                    continue
                call = Call(here, passed, self.batched, mine and self._wanted.isdisjoint(places))
                results, lean = self._called(node, call)
                for behind, g, needed in zip(node.next_functions, results, passed, strict=True):
                    if needed and g is not None:
                        new = lean and self._overwrites and _is_new(g, call)
                        arrived.add(behind, g, new)  # type: ignore[arg-type]
        return tuple(found.get(edge) for edge in self.ends)

    def _called(self, node: Node, call: Call) -> tuple[Sequence[Tensor | None], bool]:
        """Return the results of a node, and whether they were made here."""
        if isinstance(node, BackwardCFunction):
            return called(node, tuple(call.grads)), False
        if self._postpones and (found := postponed(node, call, self._wanted)) is not None:
            end, later = found
            self.postponed.setdefault(end, []).append(later)
        if (self._postpones or not self.create_graph) and (lean := LEAN.get(node.name())) is not None:
            return lean(node, call), True
        results = known_of(node)(*call.grads)
        return results if isinstance(results, tuple) else (results,), False


def _order(starts: Sequence[Node]) -> list[Node]:
    """Return all nodes behind some, each before those behind it."""
    found: list[Node] = []
    seen: set[Node] = set()
    for start in starts:
        stack: list[tuple[Node, bool]] = [(start, False)]
        while stack:
            node, done = stack.pop()
            if done:
                found.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((n, False) for n, _ in node.next_functions if n is not None and n not in seen)
    return found[::-1]


def _is_new(result: Tensor, call: Call) -> bool:
    """Say whether a result has memory that is nobody else's: neither what was given nor some numbers many times."""
    memory = result.untyped_storage()
    if memory.nbytes() != result.numel() * result.element_size():
        return False
    others = [] if call.mine else [g for g in call.grads if g is not None]
    return all(g.untyped_storage().data_ptr() != memory.data_ptr() for g in others)


class Arrived:
    """Gradients on their way, by edge.

    Args:
        overwrites: whether sums may be made in the memory of what has arrived, where that is nobody else's.
    """

    def __init__(self, overwrites: bool) -> None:
        self._overwrites = overwrites
        self._sums: dict[Edge, Tensor] = {}
        self._own: set[Edge] = set()
        self._expected: dict[Edge, list[Incoming]] = {}

    def expect(self, edge: Edge, incoming: Incoming) -> None:
        """Let something come in at an edge, when it is taken."""
        self._expected.setdefault(edge, []).append(incoming)

    def add(self, edge: Edge, g: Tensor, new: bool) -> None:
        """Add a gradient, in the shape and type of the tensor there; ``new``: it may be overwritten."""
        meta = known_of(edge[0])._input_metadata[edge[1]]
        if g.shape != torch.Size(meta.shape):
            g = g.sum_to_size(meta.shape)
        if g.dtype != meta.dtype:
            g = g.to(meta.dtype)
        before = self._sums.get(edge)
        if before is None:
            self._sums[edge] = g
        elif edge in self._own:
            before.add_(g)
            return
        else:
            self._sums[edge] = g.add_(before) if new else before + g
            new = self._overwrites
        if new:
            self._own.add(edge)

    def owns(self, edge: Edge) -> bool:
        """Say whether what has arrived at an edge is nobody else's, and nothing more is to come."""
        return edge in self._own and edge not in self._expected

    def take(self, edge: Edge) -> Tensor | None:
        """Take what has arrived at an edge."""
        for incoming in self._expected.pop(edge, ()):
            made = callable(incoming)
            self.add(edge, incoming() if callable(incoming) else incoming, made and self._overwrites)
        self._own.discard(edge)
        return self._sums.pop(edge, None)
