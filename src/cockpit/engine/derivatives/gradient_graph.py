"""The gradient of some losses as a function that can be derived again: what products with the Hessian are made by."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._vmap_internals import _vmap
from torch.autograd.graph import get_gradient_edge

from cockpit.engine.derivatives.derive import derivatives, edge_of, is_by_hand
from cockpit.engine.derivatives.lean import Found
from cockpit.engine.derivatives.postponed import Incoming, Postponed
from cockpit.engine.derivatives.walk import Walk


class GradientGraph:
    """The graph of a gradient; its numbers are let go.

    Made by hand (`cockpit.engine.derivatives.derive.by_hand`), it is derived by hand, too, and has no gradients by
    weights.

    Args:
        starts: the losses.
        tensors: leaves, by which they are derived.
        weights: of the losses.
    """

    def __init__(
        self, starts: Sequence[Tensor], tensors: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> None:
        self._tensors, self._hand = tensors, is_by_hand()
        self._ends = [edge_of(tensor) for tensor in tensors] if self._hand else []
        self._later: list[tuple[int, Postponed]] = []
        if self._hand:
            walk = Walk([edge_of(x) for x in starts], self._ends, create_graph=True, postpones=True)
            found = walk(weights)
            self._later = [
                (k, p) for k, end in enumerate(self._ends) for p in walk.postponed.get(end, ()) if p.edges()
            ]
        else:
            found = derivatives(starts, tensors, weights, create_graph=True)
        # Gradients constant in the parameters (linear losses) have no graph: their rows of the Hessian are zero.
        own = [(k, g) for k, g in enumerate(found) if g is not None and g.requires_grad]
        self._own = [k for k, _ in own]
        # Their graph is needed, their numbers are not: as many as there are parameters.
        self._edges = [get_gradient_edge(g) for _, g in own]

    @property
    def constant(self) -> bool:
        """Whether there is nothing to derive."""
        return not self._edges and not self._later

    def derived(self, vectors: Sequence[Tensor], batched: bool = False) -> Found:
        """Return the derivatives of the products with a vector for each leaf (``batched``: with several, in front)."""
        if not self._hand:
            return derivatives(self._edges, self._tensors, [vectors[k] for k in self._own], batched=batched)
        starts = [edge_of(x) for x in self._edges]
        starts += [edge for _, postponed in self._later for edge in postponed.edges()]
        walk = Walk(starts, self._ends, create_graph=False, batched=batched)

        def once(*given: Tensor) -> Found:
            incoming: list[Incoming] = [given[k] for k in self._own]
            for k, postponed in self._later:
                incoming += postponed.vectors(given[k], batched)
            return walk(incoming)

        if not batched:
            return once(*vectors)
        found: Found = _vmap(once, 0, 0, allow_none_pass_through=True)(*vectors)
        return found
