"""Derivatives on a live graph: by autograd's own engine, or by hand.

The engine launches every operation on the stream on which its forward counterpart ran, the user's, where nothing can
be recorded. *By hand*, the graph's nodes are called one by one on the present stream instead, in an order in which
every gradient is complete before it is passed on; they are the same functions. Hooks on tensors are not called, and
nodes written in Python are not served: whoever records compares the outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._vmap_internals import _vmap
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from cockpit.engine.convolution import settings_of, twice
from cockpit.engine.graph import Edge

Several = Sequence[Tensor] | Sequence[GradientEdge]
"""Tensors on the graph, or where they would be."""
Found = tuple[Tensor | None, ...]
Grads = Sequence[Tensor | None]

_here = threading.local()


@contextmanager
def by_hand() -> Iterator[None]:
    """Compute derivatives inside the block without autograd's engine."""
    before, _here.hand = is_by_hand(), True
    try:
        yield
    finally:
        _here.hand = before


def is_by_hand() -> bool:
    """Say whether that is so at the moment; nothing then waits for the device."""
    return getattr(_here, "hand", False)


def derivatives(
    outputs: Tensor | Several,
    inputs: Several,
    vectors: Tensor | Sequence[Tensor],
    create_graph: bool = False,
    batched: bool = False,
) -> Found:
    """Return ``torch.autograd.grad(...)``, keeping the graph; None for inputs that the outputs do not depend on.

    Args:
        outputs: what is derived.
        inputs: by what.
        vectors: a gradient for each output (``batched``: several of them, along a new first axis).
        create_graph: whether the result can be derived again.
        batched: see ``vectors``.
    """
    if not is_by_hand():
        return torch.autograd.grad(
            outputs,
            inputs,
            vectors,
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            is_grads_batched=batched,
        )
    starts = [outputs] if isinstance(outputs, Tensor) else outputs
    given = [vectors] if isinstance(vectors, Tensor) else list(vectors)
    walk = Walk([_edge(x) for x in starts], [_edge(x) for x in inputs], create_graph)
    if not batched:
        return walk(given)
    found: Found = _vmap(lambda *columns: walk(columns), 0, 0, allow_none_pass_through=True)(*given)
    return found


def _edge(place: Tensor | GradientEdge) -> Edge:
    found = get_gradient_edge(place) if isinstance(place, Tensor) else place
    return found.node, found.output_nr


class Walk:
    """One way back through a graph.

    Args:
        starts: the edges where gradients come in.
        ends: the edges whose gradients are wanted.
        create_graph: whether they can be derived again.
    """

    def __init__(self, starts: Sequence[Edge], ends: Sequence[Edge], create_graph: bool) -> None:
        self.starts, self.ends, self.create_graph = starts, ends, create_graph
        self.order = _order([node for node, _ in starts])
        self.leading = {node for node, _ in ends}
        """Nodes that a wanted gradient is at or behind."""
        for node in reversed(self.order):
            if any(behind in self.leading for behind, _ in node.next_functions):
                self.leading.add(node)

    def __call__(self, vectors: Sequence[Tensor]) -> Found:
        """Return the wanted gradients for those that come in."""
        arrived: dict[Edge, Tensor] = {}
        for edge, vector in zip(self.starts, vectors, strict=True):
            _add(arrived, edge, vector)
        found: dict[Edge, Tensor] = {}
        wanted = set(self.ends)
        with torch.set_grad_enabled(self.create_graph):
            for node in self.order:
                count = len(_node(node)._input_metadata)
                here = [arrived.pop((node, k), None) for k in range(count)]
                found.update(
                    {(node, k): g for k, g in enumerate(here) if g is not None and (node, k) in wanted}
                )
                passed = [behind in self.leading for behind, _ in node.next_functions]
                if not any(passed) or all(g is None for g in here):
                    continue
                for behind, g, needed in zip(
                    node.next_functions, self._called(node, here, passed), passed, strict=True
                ):
                    if needed and g is not None:
                        _add(arrived, behind, g)  # type: ignore[arg-type]
        return tuple(found.get(edge) for edge in self.ends)

    def _called(self, node: Node, grads: Grads, needed: list[bool]) -> Sequence[Tensor | None]:
        if isinstance(node, BackwardCFunction):
            raise RuntimeError(f"{node.name()} is written in Python")
        if not self.create_graph and (lean := LEAN.get(node.name())) is not None:
            return lean(node, grads, needed)
        results = _node(node)(*grads)
        return results if isinstance(results, tuple) else (results,)


def _node(node: Node) -> Any:
    """Return a node with what torch does not declare of it."""
    return node


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


def _add(arrived: dict[Edge, Tensor], edge: Edge, g: Tensor) -> None:
    """Add a gradient to what has arrived at an edge, in the shape and type of the tensor there."""
    meta = _node(edge[0])._input_metadata[edge[1]]
    if g.shape != torch.Size(meta.shape):
        g = g.sum_to_size(meta.shape)
    if g.dtype != meta.dtype:
        g = g.to(meta.dtype)
    arrived[edge] = arrived[edge] + g if edge in arrived else g


def _addmm(node: Any, grads: Grads, needed: list[bool]) -> Found:
    """Of βa + αxW: those by a, x and W."""
    (g,) = grads
    assert g is not None
    by_bias = g if node._saved_beta == 1 else g * node._saved_beta.conjugate()
    rest = _mm(node, [g if node._saved_alpha == 1 else g * node._saved_alpha.conjugate()], needed[1:])
    return by_bias if needed[0] else None, *rest


def _mm(node: Any, grads: Grads, needed: list[bool]) -> Found:
    (g,) = grads
    assert g is not None
    first, second = ("mat1", "mat2") if node.name() == "AddmmBackward0" else ("self", "mat2")
    left = g @ getattr(node, f"_saved_{second}").mT.conj() if needed[0] else None
    right = getattr(node, f"_saved_{first}").mT.conj() @ g if needed[1] else None
    return left, right


def _convolution(node: Any, grads: Grads, needed: list[bool]) -> Found:
    found: Found = torch.ops.aten.convolution_backward(
        grads[0],
        node._saved_input,
        node._saved_weight,
        node._saved_bias_sym_sizes_opt,
        *settings_of(node),
        needed,
    )
    return found


def _convolution_twice(node: Any, grads: Grads, needed: list[bool]) -> Found:
    kept = node._saved_grad_output, node._saved_input, node._saved_weight
    return twice(*kept, settings_of(node), (*grads, None)[:3], needed)


LEAN: dict[str, Callable[[Any, Grads, list[bool]], Found]] = {
    "AddmmBackward0": _addmm,
    "MmBackward0": _mm,
    "ConvolutionBackward0": _convolution,
    "ConvolutionBackwardBackward0": _convolution_twice,
}
"""The dear operations: a node that is called by hand computes all gradients, also those that nobody wants."""
