r"""Sums of squared individual gradients for given output gradients, by the same ways as the watched pass.

This is what GGN diagonals are made of: $\sum_k \sum_n (J_n^\top v_{kn})^2$. All K columns go back through the
network together, and only to the layers' outputs: no weight gradient is formed. See `column_sums` for the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from cockpit.engine.coverage.coverage import Plan, Way
from cockpit.engine.coverage.fallback import rows
from cockpit.engine.coverage.spread import Path, Spread, spreads
from cockpit.engine.curvature.column_bunch import bunched
from cockpit.engine.curvature.column_sums import Columns, column_sum, of_parts, square_together
from cockpit.engine.curvature.column_work import steps
from cockpit.engine.curvature.loss_graph import LossGraph
from cockpit.engine.curvature.subject import Subject
from cockpit.engine.derivatives.derive import derivatives
from cockpit.engine.derivatives.graph import edge, nodes_behind
from cockpit.engine.layers.formula import Layout
from cockpit.engine.numbers.precision import wide
from cockpit.engine.seeing.use import Use, calls_at
from cockpit.errors import Gap

SHAPES = 64
"""For so many shapes of a model's calls it is remembered how much work they are."""
PASS = 2**26
"""How many output gradients are held at once (256 MiB in float32); as many columns go back together."""
SMALL_PASS = 2**22
"""How many on a CPU, whose cache is to hold them (16 MiB)."""


Place = tuple[int, int]
"""A call of a layer, by its identity, and which of its outputs."""


@dataclass
class Passes:
    """What was learnt about backward passes of one plan.

    Attributes:
        batched: whether several columns can go back at once.
        work: the `LayerSums.steps` of so many columns through calls of such shapes.
        paths: the way through the graph to where a parameter meets the examples.
    """

    batched: bool = True
    work: dict[tuple[Any, ...], float] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Behind:
    """What lies behind the outputs of a graph, and where gradients are wanted: at layers' outputs, at meetings."""

    graph: LossGraph
    uses: list[Use]
    places: list[Place]
    edges: list[GradientEdge]
    spreads: dict[str, Spread]


class LayerSums:
    """The sums of one micro-batch, as a function of the losses' graph and output gradients [K, *shape].

    Args:
        subject: the micro-batch.
        plan: how individual gradients are had.
        parameters: leaves by name.
        passes: to be handed in again at the next step of the same plan.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        passes: Passes | None = None,
    ) -> None:
        self.subject, self.plan, self.parameters = subject, plan, parameters
        self.examples = len(subject.losses)
        self.passes = passes or Passes()
        self._names = {id(p): name for name, p in parameters.items() if plan.ways[name].way.by_layers}
        self._numbers = {id(subject.use(use)): k for use, k in subject.uses}
        self._order = {i: k for k, i in enumerate(self._numbers)}
        self._launching = any(p.device.type != "cpu" for p in parameters.values())
        self._found: _Behind | None = None

    def __call__(self, graph: LossGraph, vectors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Return the sums over columns and examples, by parameter; zero where nothing comes through."""
        for name in self.plan.names(Way.NONE):
            raise Gap(f"not_covered: {name}: {self.plan.ways[name].reason}")
        behind = self._behind(graph)
        uses, places = behind.uses, behind.places
        total: dict[str, Tensor] = {}
        numbers = sum(shape.numel() for use in uses for shape in use.shapes)
        size = max(1, (PASS if self._launching else SMALL_PASS) // max(1, numbers))
        few = len(vectors[0]) <= size
        for block in [vectors] if few else zip(*(v.split(size) for v in vectors), strict=True):
            pulled = self._pulled(graph, behind.edges, block)
            grads = dict(zip(places, pulled, strict=False))  # an output that nobody used has no gradient
            found = [(use, tuple(grads.get((id(use), k)) for k in range(len(use.shapes)))) for use in uses]
            met = zip(behind.spreads.items(), pulled[len(places) :], strict=True)
            for name, value in [*self._by_layers(found), *self._met(met), *self._by_graph(graph, block)]:
                total[name] = total[name] + value if name in total else value
        for name, p in self.parameters.items():
            if name not in total and self.plan.ways[name].way is not Way.UNUSED:
                total[name] = torch.zeros_like(wide(p.detach()))
        return total

    def steps(self, graph: LossGraph, columns: int) -> float:
        """Return the work of so many columns in units of a training step."""
        uses = self._behind(graph).uses
        key = columns, self.examples, *(shape for use in uses for shape in use.shapes)
        if key not in self.passes.work:
            if len(self.passes.work) >= SHAPES:
                self.passes.work.clear()
            nodes = frozenset[Node]().union(*map(nodes_behind, graph.outputs))
            ends = [e.node for e in self._behind(graph).edges]
            self.passes.work[key] = steps(uses, self.examples, nodes, ends, columns)
        return self.passes.work[key]

    def _behind(self, graph: LossGraph) -> _Behind:
        """Find the layers behind the outputs, in forward order, and where in the graph their outputs are."""
        if self._found is None or self._found.graph is not graph:
            uses: dict[int, Use] = {}
            edges: dict[Place, GradientEdge] = {}
            for node in nodes_behind(graph.losses):
                for call, place, result in calls_at(node):
                    use = self.subject.use(call)
                    if self._owned(use):
                        uses[id(use)] = use
                        edges[id(use), place] = GradientEdge(node, result)
            ordered = [uses[i] for i in sorted(uses, key=lambda i: self._order.get(i, 0))]
            shared = {name: self.parameters[name] for name in self.plan.names(Way.SPREAD)}
            callers = [self.subject.use(use) for use, _ in self.subject.uses]
            found = spreads(graph.losses, shared, callers, self.passes.paths)
            meetings = [GradientEdge(s.node, 0) for s in found.values()]
            self._found = _Behind(graph, ordered, list(edges), [*edges.values(), *meetings], found)
        return self._found

    def _pulled(
        self, graph: LossGraph, edges: list[GradientEdge], block: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients [K, *shape] of all layers' outputs; those of the model's own are given."""
        given = dict(zip(map(edge, graph.outputs), block, strict=True))
        places = [(e.node, e.output_nr) for e in edges]
        far = [e for e, place in zip(edges, places, strict=True) if place not in given]
        pulled = iter(self._pull(graph, far, block) if far else ())
        return [given[place] if place in given else next(pulled) for place in places]

    def _pull(
        self, graph: LossGraph, edges: list[GradientEdge], block: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Return the gradients [K, *shape] at some edges, by autograd."""
        columns = len(block[0])
        if columns > 1 and self.passes.batched:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # slow batching rules are announced; the result is right
                    return derivatives(graph.outputs, edges, block, batched=True)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # no batching rule, or a hook of the user's that reads numbers
                self.passes.batched = False
        single = [derivatives(graph.outputs, edges, [v[k] for v in block]) for k in range(columns)]
        if columns == 1:
            return [None if g is None else g[None] for g in single[0]]
        return [
            None if any(g is None for g in each) else torch.stack([g for g in each if g is not None])
            for each in zip(*single, strict=True)
        ]

    def _by_layers(self, found: list[tuple[Use, tuple[Tensor | None, ...]]]) -> Iterator[tuple[str, Tensor]]:
        uses: dict[str, list[Columns]] = {}
        for use, grads in found:
            if use.refused is None and any(g is not None for g in grads):
                call = Columns(use, grads, self.examples, self._layouts(use))
                for name in self._owned(use):
                    uses.setdefault(name, []).append(call)
        if self._launching:
            square_together([calls[0] for calls in uses.values() if len(calls) == 1])
            together = bunched(uses, self._names)
            yield from together.items()
            uses = {name: calls for name, calls in uses.items() if name not in together}
        for name, calls in uses.items():
            expected = self.plan.uses.get(name)
            if expected is not None and len(calls) > expected:
                raise Gap(f"not_covered: {name}: used more often than when its formula was checked")
            value = column_sum(name, self.parameters[name], calls, self._names)
            if value is not None:
                yield name, value

    def _met(self, found: Iterable[tuple[tuple[str, Spread], Tensor | None]]) -> Iterator[tuple[str, Tensor]]:
        """Serve the parameters that all examples share, by the gradients [K, N, …] where they meet."""
        for (name, spread), grads in found:
            for column in () if grads is None else grads:
                yield name, of_parts(name, self.parameters[name], (spread.part(name, wide(column)),))

    def _by_graph(self, graph: LossGraph, block: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Serve the parameters that no formula knows, row by row and column by column."""
        met = self._behind(graph).spreads
        chosen = {
            n: p for n, p in self.parameters.items() if self.plan.ways[n].way.past_layers and n not in met
        }
        vectorised = not any(self.plan.ways[name].way is Way.LOOP for name in chosen)
        for k in range(len(block[0])) if chosen else ():
            with torch.enable_grad():
                weighted = [x * v[k] for x, v in zip(graph.outputs, block, strict=True)]
                losses = graph.rows(weighted).sum(1)
            for each, _ in rows(losses, chosen, vectorised=vectorised):
                for name, g in each.items():
                    yield name, wide(g).square().sum(0)

    def _owned(self, use: Use) -> frozenset[str]:
        """Return the parameters of a call's layer that its formula serves."""
        return self.plan.served_by(use.module, self._names)

    def _layouts(self, use: Use) -> tuple[Layout, ...]:
        known = self.plan.layouts.get((*use.key, self._numbers.get(id(use), 0)))
        if known is None:
            candidates = use.candidates(self.examples)
            if not candidates:
                raise Gap(f"not_covered: {use.name}: no axis of the layer's output can be the examples")
            known = candidates[0]
        return known
