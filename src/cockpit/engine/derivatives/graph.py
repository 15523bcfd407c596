"""Reading the autograd graph: which outputs the losses are a function of, and what cannot be derived twice.

A tensor is known to the graph by its edge: the node that produces it and which of the node's results it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.weak import WeakIdKeyDictionary

from cockpit.errors import Gap

Edge = tuple[Node, int]
_WALKED = WeakIdKeyDictionary()
"""The nodes behind a tensor, for as long as the tensor is there: several look at the same graph in a step."""


def edge(tensor: Tensor) -> Edge | None:
    """Return the edge of a tensor that autograd knows, None of any other."""
    if not tensor.requires_grad:
        return None
    found = get_gradient_edge(tensor)
    return found.node, found.output_nr


def edges_behind(starts: Iterable[Edge], stops: Iterable[Edge] = ()) -> set[Edge]:
    """Return every edge that gradients pass going back from ``starts``, but none beyond ``stops``."""
    seen = set(starts)
    walls = set(stops)
    waiting = list(seen)
    expanded: set[Node] = set()
    while waiting:
        here = waiting.pop()
        if here in walls or here[0] in expanded:
            continue
        expanded.add(here[0])
        behind = [e for e in here[0].next_functions if e[0] is not None and e not in seen]
        seen.update(behind)  # type: ignore[arg-type]
        waiting.extend(behind)  # type: ignore[arg-type]
    return seen


def nodes_behind(tensor: Tensor) -> frozenset[Node]:
    """Return every node that gradients pass going back from a tensor; its graph is walked once."""
    start = edge(tensor)
    if start is None:
        return frozenset()
    known: tuple[Edge, frozenset[Node]] | None = _WALKED.get(tensor)
    if known is None or known[0] != start:  # an operation in place moves a tensor to another node
        seen, waiting = {start[0]}, [start[0]]
        while waiting:
            for node, _ in waiting.pop().next_functions:
                if node is not None and node not in seen:
                    seen.add(node)
                    waiting.append(node)
        known = _WALKED[tensor] = start, frozenset(seen)
    return known[1]


def names_behind(tensor: Tensor) -> tuple[str, ...]:
    """Name the operations that a tensor is made by, in alphabetical order."""
    return tuple(sorted(node.name() for node in nodes_behind(tensor)))


def hides_layers(losses: Tensor) -> bool:
    """Say whether a part of the network is behind reentrant checkpointing, where only ``backward`` reaches it."""
    return any(node.name() == "CheckpointFunctionBackward" for node in nodes_behind(losses))


def frontier(losses: Tensor, outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> list[int]:
    """Return which outputs the losses are directly computed from: what parts the losses from the model.

    An output behind another one (hidden states next to logits) is left out. A `Gap` says why the losses are
    not a function of the outputs alone, without which no generalised Gauss-Newton matrix is defined.
    """
    start = edge(losses)
    if start is None:
        raise Gap("no_outputs: the losses carry no graph")
    known = [edge(output) for output in outputs]
    if start in known:
        raise Gap(
            "no_outputs: the model returns its losses; return what the losses are computed from instead"
        )
    walls = {e for e in known if e is not None}
    passed = edges_behind([start], walls)
    found = {e: known.index(e) for e in known if e is not None and e in passed}
    if not found:
        raise Gap("no_outputs: the losses do not depend on the tensors that the model returned")
    leaves = {id(getattr(node, "variable", None)) for node, _ in passed - walls}
    if any(id(p) in leaves for p in parameters.values()):
        raise Gap("no_outputs: the losses use parameters past the model's outputs (a penalty on weights?)")
    for e in found if len(found) > 1 else ():
        if (edges_behind([e]) - {e}) & set(found):
            raise Gap("no_outputs: the losses use an output of the model and another one computed from it")
    return list(found.values())


@contextmanager
def dropped_graphs_noticed(starts: Iterable[Tensor], stops: Iterable[Tensor] = ()) -> Iterator[None]:
    """Raise a `Gap` if a custom function's backward, run inside the block, forgets how its result depends.

    Native operations without a second derivative raise when asked for it. A custom ``autograd.Function``
    whose backward is ``once_differentiable``, or a foreign kernel, does not: its part of the Hessian would
    silently be missing.
    """
    blamed: list[str] = []

    def look(node: Node) -> Any:
        def hook(inputs: tuple[Tensor | None, ...], results: tuple[Tensor | None, ...]) -> None:
            given = any(g is not None and g.requires_grad for g in results)
            came = [g for g in inputs if g is not None]
            depends = given or bool(getattr(node, "_raw_saved_tensors", ()))
            delayed = any(g.grad_fn is not None and "Error" in g.grad_fn.name() for g in came)
            if delayed or (depends and came and not any(g.requires_grad for g in came)):
                blamed.append(node.name().removesuffix("Backward"))

        return node.register_hook(hook)

    ends = [e for e in map(edge, stops) if e is not None]
    passed = edges_behind([e for e in map(edge, starts) if e is not None], ends)
    nodes = {node for node, _ in passed.difference(ends)}
    handles = [look(node) for node in nodes if isinstance(node, BackwardCFunction)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if blamed:
        raise Gap(f"no_double_backward: the backward of {blamed[0]} cannot be differentiated")


@contextmanager
def graphs_kept() -> Iterator[None]:
    """Make backward passes inside the block keep their graphs; their results are the same to the bit."""
    original = torch.autograd.backward

    def keeping(
        tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, *rest: Any, **more: Any
    ) -> None:
        original(tensors, grad_tensors, True, *rest, **more)

    torch.autograd.backward = keeping  # what Tensor.backward calls
    try:
        yield
    finally:
        torch.autograd.backward = original
