"""Use: one call of a layer on its way forward, and what nodes of the graph know of it.

Inputs are kept without their graph, and by the graph: a hook on the outputs holds the call, nothing else does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from cockpit.engine.layers.formula import Call, Formula, Layout, Replay

MARK = "cockpit.calls"
"""Under this name a node of the autograd graph keeps which calls of layers it made outputs of."""


class Use:
    """One forward call of a layer, waiting for its output gradients."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        formula: Formula,
        args: Any,
        kwargs: Any,
        outputs: list[Tensor],
        moving: frozenset[int],
    ) -> None:
        self.name, self.module, self.formula = name, module, formula
        self.args: tuple[Any, ...]
        self.kwargs: Mapping[str, Any]
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # the usual case, without a tree
            self.args, self.kwargs = (_kept(moving, args[0]),), kwargs
            self.inputs: list[Tensor] = [self.args[0]]
            self._made = args[0].requires_grad and not args[0].is_leaf
        else:
            self.args = tree_map(partial(_kept, moving), args)
            self.kwargs = tree_map(partial(_kept, moving), kwargs)
            self.inputs = tensors_in((self.args, self.kwargs))
            self._made = False
        self.shapes = tuple([t.shape for t in outputs])
        self.versions = [t._version for t in self.inputs]
        self.refused = formula.refuses(module, self.args, self.kwargs)
        self.replay: Replay | None = None
        self.passed = False
        """Whether its output gradients have come and were received."""
        self.handle: RemovableHandle | None = None
        """Of the hook on several outputs, where there are several."""
        self.observed: list[Tensor] = []
        self.key = (name, tuple([len(shape) for shape in self.shapes]))

    def candidates(self, examples: int) -> list[tuple[Layout, ...]]:
        """Return the ways the examples may lie in this call's outputs."""
        outputs = tuple(torch.empty(shape, device="meta") for shape in self.shapes)
        return self.formula.candidates(self.module, outputs, examples)

    def call(
        self,
        grads: tuple[Tensor | None, ...],
        examples: int,
        layouts: tuple[Layout, ...],
        keep: Tensor | None = None,
    ) -> Call:
        """Return the call as formulas see it."""
        seen = tuple(self.observed)
        return Call(self.module, self.args, self.kwargs, grads, examples, layouts, keep, self.replay, seen)

    def observe(self, found: list[Tensor] | str) -> None:
        """Take what an observer saw of the call, or why it is beyond its formula."""
        if isinstance(found, str):
            self.refused = self.refused or found
        else:
            self.observed = found
            self.inputs = [*self.inputs, *found]
            self.renew()

    def at(self, places: list[Tensor]) -> Use:
        """Return the same call with its inputs in other places."""
        use = copy(self)
        there = {id(x): place for x, place in zip(self.inputs, places, strict=True)}
        use.args = tree_map(lambda leaf: there.get(id(leaf), leaf), self.args)
        use.kwargs = tree_map(lambda leaf: there.get(id(leaf), leaf), self.kwargs)
        use.observed = [there[id(x)] for x in self.observed]
        use.inputs = places
        use.renew()
        return use

    def renew(self) -> None:
        """Take the inputs as they are now for what the layer saw."""
        self.versions = [t._version for t in self.inputs]

    def release(self) -> None:
        """Let go of the inputs: nobody will ask for them any more, though the graph may live on."""
        self.args, self.kwargs, self.inputs, self.observed, self.versions = (), {}, [], [], []

    def part(self) -> None:
        """Part from the graph that was passed through: torch's hook on several outputs holds its nodes, a cycle."""
        if self.passed and self.handle is not None:
            self.handle.remove()
            self.handle = None

    def given(self) -> list[int]:
        """Return the addresses of inputs that may be the user's data: the model's own operations did not make them."""
        return [] if self._made else [t.untyped_storage().data_ptr() for t in self.inputs]

    def intact(self) -> bool:
        """Say whether the kept inputs are still what the layer saw (nobody wrote into them since)."""
        return [t._version for t in self.inputs] == self.versions


def signature(uses: Iterable[Use]) -> tuple[Any, ...]:
    """Describe a forward pass: which layers were called, in which shape classes, in which mode."""
    return tuple([(*use.key, use.module.training, use.refused) for use in uses])


def mark(use: Use, outputs: list[Tensor]) -> None:
    """Note at the nodes that made a call's outputs which call it was, for `calls_at`.

    (The other way round, a call that held its nodes would be a cycle through C++: the call is held by its hook.)
    """
    for place, output in enumerate(outputs):
        made = get_gradient_edge(output)
        _notes(made.node).setdefault(MARK, []).append((weakref.ref(use), place, made.output_nr))


def calls_at(node: Node) -> list[tuple[Use, int, int]]:
    """Return (call, which of its outputs, which result of the node) for what a node made."""
    return [(use, place, nr) for ref, place, nr in _notes(node).get(MARK, ()) if (use := ref()) is not None]


def _notes(node: Any) -> dict[str, Any]:
    """Return the dictionary that every node of the autograd graph has for whoever wants to note something."""
    notes: dict[str, Any] = node.metadata
    return notes


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of a nested structure."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _kept(moving: frozenset[int], leaf: Any) -> Any:
    """Return an input without its graph; a copy where it is (a view of) a parameter, which the optimiser moves."""
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.detach()
    if leaf.layout is torch.strided and leaf.untyped_storage().data_ptr() in moving:
        return leaf.clone()
    return leaf
