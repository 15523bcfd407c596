"""How much work columns of output gradients are, by multiply-adds, in units of a training step.

Going back, a column is multiplied with every matrix between the outputs and the layers it is wanted at, trained or
frozen: a frozen layer behind an adapter is passed like any other, one before the first trained layer is not. Which
products those are is read off the autograd graph, from shapes alone, since saved tensors may be anywhere (on another
device, or not computed yet): a backbone that nothing trained comes before has no nodes at all. Squaring takes products
of its own, those of the layers' formulas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod
from typing import Any

from torch.autograd.graph import Node

from cockpit.engine.seeing.use import Use

MATRICES = {
    "MmBackward0": (0, -2),
    "BmmBackward0": (0, -2),
    "AddmmBackward0": (1, -2),
    "BaddbmmBackward0": (1, -2),
    "LinearBackward0": (0, -1),
}
"""Products of two matrices: where the first is among the operands, and the axis of the second that is summed over."""
CONVOLUTION = "ConvolutionBackward0"


def steps(
    uses: Iterable[Use], examples: int, nodes: Collection[Node], ends: Iterable[Node], columns: int
) -> float:
    """Return the work of columns and of their squares.

    A training step multiplies once on its way forward, and once more for every operand that needs a gradient. A layer
    used once an example squares all columns in one product, see `column_sums`.

    Args:
        uses: calls of the layers whose squares are wanted.
        examples: how many examples there are.
        nodes: those behind the outputs.
        ends: those that made the layers' outputs, where columns arrive.
        columns: how many there are.
    """
    usual = done = 0.0
    for size, trained, passed in products(nodes, ends):
        usual += (1 + trained) * size
        done += columns * passed * size
    for use in uses:
        weights = [p for p in use.module.parameters() if p.requires_grad]
        weight = max((p.numel() for p in weights), default=0)
        outputs = next((p.shape[0] for p in weights if p.ndim > 1), weight)
        positions = use.shapes[0].numel() / max(1, examples * outputs)
        done += (columns if positions > 1 else 1) * positions * weight * examples
    return done / usual if usual else float(columns)


def products(nodes: Collection[Node], ends: Iterable[Node]) -> Iterator[tuple[int, int, int]]:
    """Yield (multiply-adds, how many operands need a gradient, how many are passed to an end) of every product."""
    targets = set(ends)
    leading = targets | _leading_to(targets, nodes)
    for node in nodes:
        name = node.name()
        if name not in MATRICES and name != CONVOLUTION:
            continue
        first = 0 if name == CONVOLUTION else MATRICES[name][0]
        operands = node.next_functions[first : first + 2]
        size = _size(node, name, [None if n is None else _shape(n, k) for n, k in operands])
        if size:
            behind = [n for n, _ in operands if n is not None]
            yield size, len(behind), sum(n in leading for n in behind)


def _leading_to(targets: set[Node], nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes that have a target behind them."""
    before: dict[Node, list[Node]] = {}
    for node in nodes:
        for behind, _ in node.next_functions:
            if behind is not None:
                before.setdefault(behind, []).append(node)
    found, waiting = set[Node](), list(targets)
    while waiting:
        for node in before.get(waiting.pop(), ()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _size(node: Node, name: str, operands: list[tuple[int, ...] | None]) -> int:
    """Return the multiply-adds of a product; zero where the graph does not tell them."""
    result, (left, right) = _shape(node, 0), operands
    if name != CONVOLUTION:
        summed = left[-1] if left else right[MATRICES[name][1]] if right else 0
        return prod(result) * summed
    transposed = getattr(node, "_saved_transposed", False)
    places = left if transposed else result  # every weight is met once at each of them
    if right is not None and places is not None:
        return prod(places) * prod(right[1:])
    return prod(result) * _summed(node, left, result) if left and not transposed else 0


def _summed(node: Any, image: tuple[int, ...], result: tuple[int, ...]) -> int:
    """Return what each output of a convolution sums over; with strides, the widest kernel that fits the shapes."""
    settings = zip(
        image[2:], result[2:], node._saved_stride, node._saved_padding, node._saved_dilation, strict=False
    )
    kernel: list[int] = [
        (a + 2 * pad - stride * (b - 1) - 1) // step + 1 for a, b, stride, pad, step in settings
    ]
    return image[1] // int(node._saved_groups) * prod(kernel)


def _shape(node: Any, place: int) -> tuple[int, ...]:
    """Return the shape of one result of a node."""
    return tuple(node._input_metadata[place].shape)
