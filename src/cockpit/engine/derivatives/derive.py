"""Derivatives on a live graph: by autograd's own engine, or by hand.

The engine launches every operation on the stream on which its forward counterpart ran, the user's, where nothing can
be recorded. *By hand* (`cockpit.engine.derivatives.walk`), the graph's nodes are called one by one on the present
stream instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._vmap_internals import _vmap
from torch.autograd.graph import GradientEdge, get_gradient_edge

from cockpit.engine.derivatives.graph import Edge
from cockpit.engine.derivatives.lean import Found
from cockpit.engine.derivatives.walk import Walk

Several = Sequence[Tensor] | Sequence[GradientEdge]
"""Tensors on the graph, or where they would be."""

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
    ends = [edge_of(x) for x in inputs]
    walk = Walk([edge_of(x) for x in starts], ends, create_graph, batched=batched)
    if not batched:
        return walk(given)
    found: Found = _vmap(lambda *columns: walk(columns), 0, 0, allow_none_pass_through=True)(*given)
    return found


def edge_of(place: Tensor | GradientEdge) -> Edge:
    """Return the edge of a tensor on the graph, or of where it would be."""
    found = get_gradient_edge(place) if isinstance(place, Tensor) else place
    return found.node, found.output_nr
