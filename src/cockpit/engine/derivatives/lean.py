"""Nodes of a graph called by hand, with no more work than what is needed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cockpit.engine.derivatives import batch_norm, gelu, layer_norm
from cockpit.engine.derivatives.convolution import settings_of, twice
from cockpit.engine.numbers.products import Multiply, multiplier

Found = tuple[Tensor | None, ...]
Grads = Sequence[Tensor | None]


@dataclass(frozen=True, eq=False)
class Call:
    """What a node is called with."""

    grads: Grads
    needed: list[bool]
    """Which of its results are."""
    batched: bool = False
    """Whether they have a further axis that they do not show."""
    mine: bool = False
    """Whether its results may be written where the gradients are."""

    @property
    def grad(self) -> Tensor:
        """The only gradient."""
        (g,) = self.grads
        assert g is not None
        return g

    @property
    def multiply(self) -> Multiply:
        """What multiplies matrices."""
        return multiplier(self.batched)


def known_of(node: Node) -> Any:
    """Return a node with what torch does not declare of it."""
    return node


def _addmm(node: Any, call: Call) -> Found:
    """Of βa + αxW: those by a, x and W."""
    g, alpha, beta = call.grad, node._saved_alpha, node._saved_beta
    by_bias = None
    if call.needed[0]:
        by_bias = g if beta == 1 else g * beta.conjugate()
    scaled = g if alpha == 1 else g * alpha.conjugate()
    return by_bias, *_mm(node, Call([scaled], call.needed[1:], call.batched))


def _mm(node: Any, call: Call) -> Found:
    g, needed, multiply = call.grad, call.needed, call.multiply
    first, second = ("mat1", "mat2") if node.name() == "AddmmBackward0" else ("self", "mat2")
    left = multiply(g, _of(node, second).mT.conj()) if needed[0] else None
    if not needed[1]:
        return left, None
    x, behind = _of(node, first).conj(), node.next_functions[-1][0]
    if behind.name() == "TBackward0":
        # The weight was turned, so its gradient will be turned back: then it lies in order.
        return left, multiply(g.mT, x).mT
    return left, multiply(x.mT, g)


def _of(node: Any, name: str) -> Tensor:
    """Return what an operation has saved, on the graph only where that is going to be derived again."""
    saved: Tensor = getattr(node, f"_saved_{name}")
    return saved if torch.is_grad_enabled() else saved.detach()


def _convolution(node: Any, call: Call) -> Found:
    g, (by_x, by_w, by_b) = call.grad, call.needed
    kept = node._saved_input, node._saved_weight, node._saved_bias_sym_sizes_opt
    alone = by_b and not by_w  # torch's libraries make both, or none
    total = g.sum([0, *range(2, g.ndim)]) if alone else None
    if alone and not by_x:
        return None, None, total
    mask = [by_x, by_w, by_b and not alone]
    found: Found = torch.ops.aten.convolution_backward(g, *kept, *settings_of(node), mask)
    return *found[:2], total if alone else found[2]


def _convolution_twice(node: Any, call: Call) -> Found:
    kept = node._saved_grad_output, node._saved_input, node._saved_weight
    return twice(*kept, settings_of(node), (*call.grads, None)[:3], call.needed)


def _batch_norm_twice(node: Any, call: Call) -> Found:
    if not batch_norm.serves(node, node._saved_grad_out):
        return known_of(node)(*call.grads)  # type: ignore[no-any-return]
    kept = node._saved_grad_out, node._saved_input, node._saved_weight
    found = batch_norm.twice(tuple(call.grads), *kept, (node._saved_save_mean, node._saved_save_invstd))
    results = zip(found, call.needed, strict=False)
    return *(g if needed else None for g, needed in results), *[None] * (len(call.needed) - 3)


def _cudnn_batch_norm_twice(node: Any, call: Call) -> Found:
    """That of cuDNN gives the derivative by the input first."""
    if not batch_norm.serves(node, node._saved_grad_output):
        return known_of(node)(*call.grads)  # type: ignore[no-any-return]
    kept = node._saved_grad_output, node._saved_input, node._saved_weight
    moments = node._saved_save_mean, node._saved_save_var
    by_delta, by_x, by_w = batch_norm.twice(tuple(call.grads), *kept, moments)
    results = zip((by_x, by_delta, by_w), call.needed, strict=False)
    return *(g if needed else None for g, needed in results), *[None] * (len(call.needed) - 3)


def _layer_norm_twice(node: Any, call: Call) -> Found:
    kept = node._saved_grad_out, node._saved_input
    axes = len(node._saved_normalized_shape)
    if not layer_norm.serves(*kept, axes):
        return known_of(node)(*call.grads)  # type: ignore[no-any-return]
    moments = node._saved_mean, node._saved_rstd
    found = layer_norm.twice(tuple(call.grads), *kept, node._saved_weight, moments, axes)
    results = zip((*found[:2], None, None, found[2], None), call.needed, strict=True)
    return tuple(g if needed else None for g, needed in results)


def _gelu_twice(node: Any, call: Call) -> Found:
    if not gelu.serves(node._saved_grad_output, node._saved_self):
        return known_of(node)(call.grad)  # type: ignore[no-any-return]
    kept = node._saved_grad_output, node._saved_self, node._saved_approximate
    by_delta, by_x = call.needed
    return gelu.twice(call.grad, *kept, (by_delta, by_x))


def _relu(node: Any, call: Call) -> Found:
    return (_where_positive(call, _of(node, "result"), 0),)


def _relu_twice(node: Any, call: Call) -> Found:
    """Constant in what it is derived at: torch makes zeros of the second result, as large as a layer's outputs."""
    return _where_positive(call, _of(node, "self"), node._saved_threshold), None


def _where_positive(call: Call, x: Tensor, threshold: float) -> Tensor:
    g = call.grad
    if call.mine:
        found: Tensor = torch.ops.aten.threshold_backward.grad_input(g, x, threshold, grad_input=g)
        return found
    return torch.ops.aten.threshold_backward(g, x, threshold)  # type: ignore[no-any-return]


def _pool_twice(node: Any, call: Call) -> Found:
    """Constant, too, in what it is derived at."""
    if call.batched:
        return node(call.grad)  # type: ignore[no-any-return]
    places = node._saved_indices
    return call.grad.flatten(-2).gather(-1, places.flatten(-2)).view(places.shape), None


LEAN: dict[str, Callable[[Any, Call], Found]] = {
    "AddmmBackward0": _addmm,
    "MmBackward0": _mm,
    "ConvolutionBackward0": _convolution,
    "ConvolutionBackwardBackward0": _convolution_twice,
    "CudnnBatchNormBackwardBackward0": _cudnn_batch_norm_twice,
    "GeluBackwardBackward0": _gelu_twice,
    "NativeBatchNormBackwardBackward0": _batch_norm_twice,
    "NativeLayerNormBackwardBackward0": _layer_norm_twice,
    "ReluBackward0": _relu,
    "ThresholdBackwardBackward0": _relu_twice,
    "MaxPool2DWithIndicesBackwardBackward0": _pool_twice,
}
"""The dear operations: a node that is called by hand computes all gradients, also those that nobody wants."""
