r"""Which root a batch's losses have: recognised by the action of their Hessians on random vectors.

What was recognised is remembered for losses of the same operations (`LossGraph.operations`) and examined again
at the 2nd, 4th, 8th, ... use; in between only the numbers that change from batch to batch are computed, and a
GPU is not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.curvature.loss_graph import DENSE, LossGraph, Operations
from cockpit.engine.curvature.loss_roots import DenseRoot, Root, SeparateRoot, SoftmaxRoot
from cockpit.engine.curvature.loss_targets import Targets
from cockpit.engine.derivatives.derive import is_by_hand
from cockpit.engine.layers.formula import Layout
from cockpit.engine.numbers.precision import wide
from cockpit.errors import Gap


@dataclass(frozen=True)
class Kind:
    """What is the same for all batches of one kind of losses.

    Attributes:
        root: the kind of root.
        layouts: where the examples are in the outputs.
        axis: that of a softmax's classes.
        targets: whether a softmax's weights are told by its nodes.
        labels: whether its targets are labels, so that its weights can be read off the gradient.
        convex: whether no entry of a separate loss's Hessian is negative.
    """

    root: type[Root]
    layouts: tuple[Layout, ...]
    axis: int = 0
    targets: bool = False
    labels: bool = False
    convex: bool = False


class Kinds:
    """The kinds of losses seen so far."""

    def __init__(self) -> None:
        self._kinds: dict[Operations, Kind] = {}
        self._turns: dict[Operations, int] = {}

    def root(
        self, losses: Tensor, outputs: Sequence[Tensor], parameters: Mapping[str, Tensor] | None = None
    ) -> Root:
        """Return the cheapest root of a batch's loss Hessians; arguments as `LossGraph`."""
        graph = LossGraph(losses, outputs, parameters, self._layouts)
        kind = self._known(graph.operations)
        self.count(graph.operations)
        if kind is not None and kind.root is not DenseRoot:
            return _quickly(graph, kind)
        root = root_of(graph)
        axis, targets, labels, convex = 0, False, False, False
        if isinstance(root, SoftmaxRoot):
            axis, targets = root.axis, _has_targets(root)
            labels = not targets and _has_labels(root)
        elif isinstance(root, SeparateRoot):
            convex = bool((root.entries >= 0).all())
        kind = self._kinds[graph.operations] = Kind(type(root), graph.layouts, axis, targets, labels, convex)
        # To the last digit what a step gives that is not examined: a resumed run repeats an uninterrupted one.
        return root if kind.root is DenseRoot else _quickly(graph, kind)

    def count(self, operations: Operations) -> None:
        """Take note of a use, which a recording is not."""
        if not is_by_hand():
            self._turns[operations] = self._turns.get(operations, 0) + 1

    def due(self, operations: Operations) -> bool:
        """Say whether losses of these operations are to be examined at their next use."""
        turn = self._turns.get(operations, 0)
        return turn & (turn - 1) == 0 or operations not in self._kinds

    def _known(self, operations: Operations) -> Kind | None:
        return None if self.due(operations) and not is_by_hand() else self._kinds.get(operations)

    def _layouts(self, operations: Operations) -> tuple[Layout, ...] | None:
        kind = self._known(operations)
        return None if kind is None else kind.layouts


def root_of(graph: LossGraph) -> Root:
    """Return the cheapest root of a batch's loss Hessians."""
    found = separate_root(graph) or softmax_root(graph)
    if found is not None:
        return found
    if graph.numbers > DENSE:
        raise Gap(
            f"too_many_outputs: {graph.numbers} output numbers an example, and the loss is neither a softmax "
            f"cross-entropy nor a loss of each number by itself (at most {DENSE} are written out)"
        )
    return DenseRoot.of(graph)


def _quickly(graph: LossGraph, kind: Kind) -> Root:
    """Return the root of losses whose kind is known."""
    if kind.root is SeparateRoot:
        # Where looking costs nothing, nothing is taken for granted.
        looks = graph.device.type == "cpu" and not is_by_hand()
        return SeparateRoot(graph, _entries(graph), kind.convex and not looks)
    (output,) = graph.outputs
    if kind.targets and (found := Targets.of(graph, kind.axis)) is not None:
        p = found.probabilities(_positions(graph, output.detach(), kind.axis))
        return SoftmaxRoot(graph, kind.axis, p, found.weights(graph, p))
    p = _positions(graph, output.detach(), kind.axis).softmax(-1)
    if kind.labels:
        return SoftmaxRoot(graph, kind.axis, p, _weights_of_labels(graph, kind.axis, p))
    (action,) = graph.product([probe := _irregular(output, kind.axis)])
    probes, actions = ([_positions(graph, x, kind.axis)] for x in (probe, action))
    return SoftmaxRoot(graph, kind.axis, p, softmax_weights(p, probes, actions)[0])


def _has_targets(root: SoftmaxRoot) -> bool:
    """Say whether the weights are told by the losses' nodes."""
    found = Targets.of(root.graph, root.axis)
    if found is None or found.probabilities(root.probabilities).dtype != root.probabilities.dtype:
        return False
    return _close(found.weights(root.graph, root.probabilities), root)


def _has_labels(root: SoftmaxRoot) -> bool:
    """Say whether the weights can be read off the gradient, to the full precision of the outputs."""
    found = _weights_of_labels(root.graph, root.axis, root.probabilities)
    return root.graph.outputs[0].dtype == root.probabilities.dtype and _close(found, root)


def _close(weights: Tensor, root: SoftmaxRoot) -> bool:
    """Say whether weights are those that the losses' Hessians act with."""
    most = root.graph.tolerance * root.weights.max()
    return bool(((weights - root.weights).abs() <= most).all())


def _weights_of_labels(graph: LossGraph, axis: int, p: Tensor) -> Tensor:
    """Return κ of every position [N, T] of a cross-entropy with labels."""
    return label_weights(p, _positions(graph, graph.slope()[0], axis))


def label_weights(p: Tensor, slope: Tensor) -> Tensor:
    r"""Return κ of every position [N, T] of a cross-entropy with labels y, whose gradient is $\kappa (p - e_y)$.

    All of its entries are positive but that of the label: $\kappa = g_c / p_c$ where $g_c$ is largest.
    """
    largest, place = slope.max(-1, keepdim=True)
    return (largest / p.gather(-1, place).clamp_min(torch.finfo(p.dtype).tiny)).squeeze(-1)


def _irregular(like: Tensor, axis: int) -> Tensor:
    """Return numbers between -1 and 1 that do not repeat along an axis (a sum over it must not be left empty)."""
    steps = torch.arange(like.shape[axis], device=like.device, dtype=torch.float32)
    numbers = (steps * 0.6180339887) % 1 * 2 - 1
    shape = [-1 if k == axis else 1 for k in range(like.ndim)]
    return numbers.to(like.dtype).view(shape).expand_as(like)


def _entries(graph: LossGraph) -> Tensor:
    return wide(graph.rows(graph.product([torch.ones_like(x) for x in graph.outputs])))


def separate_root(graph: LossGraph) -> SeparateRoot | None:
    """Recognise losses whose Hessian is diagonal by its action on ones and on a random vector."""
    entries = _entries(graph)
    probe = graph.probe(1)
    true = graph.rows(graph.product(probe))
    error = (true - entries * graph.rows(probe)).norm(dim=1)
    floor = graph.epsilon * true.norm()
    if not bool((error <= graph.tolerance * true.norm(dim=1) + floor).all()):
        return None
    return SeparateRoot(graph, entries)


def softmax_root(graph: LossGraph) -> SoftmaxRoot | None:
    """Recognise cross-entropy along the last axis, or along the second, by its action on random vectors."""
    if len(graph.outputs) > 1:
        return None
    (output,), (layout,) = graph.outputs, graph.layouts
    axes = [axis for axis in dict.fromkeys((output.ndim - 1, 1)) if 0 < axis < output.ndim]
    probes = [graph.probe(seed) for seed in (2, 3)]
    actions = [graph.product(probe) for probe in probes]
    for axis in axes:
        if axis == layout.axis or output.shape[axis] < 2:
            continue
        p = _positions(graph, output.detach(), axis).softmax(-1)
        seen, done = ([_positions(graph, x, axis) for (x,) in tensors] for tensors in (probes, actions))
        weights, off = softmax_weights(p, seen, done)
        if bool((off <= graph.tolerance).all()):
            return SoftmaxRoot(graph, axis, p, weights)
    return None


def _positions(graph: LossGraph, x: Tensor, axis: int) -> Tensor:
    """Return a tensor shaped like the only output as [N, T, C]."""
    last = x if axis == x.ndim - 1 else x.movedim(axis, -1)
    return wide(graph.layouts[0].split(last, graph.examples, 1))


def softmax_weights(p: Tensor, probes: list[Tensor], actions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return κ of every position [N, T] by least squares, and how far the actions are from a softmax's."""
    spread = [p * u for u in probes]
    expected = [s - p * s.sum(-1, keepdim=True) for s in spread]
    size = torch.stack([e.square().sum(-1) for e in expected]).sum(0)
    scale = torch.stack([s.square().sum(-1) for s in spread]).sum(0)
    match = torch.stack([(a * e).sum(-1) for a, e in zip(actions, expected, strict=True)]).sum(0)
    weights = torch.where(size > 0, match / size, 0)
    # A prediction that is almost certain leaves nothing but cancellation to read the weight from.
    clear = size > torch.finfo(p.dtype).eps * scale
    most = torch.where(clear, weights, 0).max().clamp_min(0)
    weights = weights.clamp(torch.zeros_like(most), most)
    allowed = torch.where(clear, weights, most) * scale.sqrt()
    errors = [(a - weights.unsqueeze(-1) * e).norm(dim=-1) for a, e in zip(actions, expected, strict=True)]
    error = torch.stack(errors).amax(0)
    return weights, torch.where(error == 0, 0, error / allowed)
