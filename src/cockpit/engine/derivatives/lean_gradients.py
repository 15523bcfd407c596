"""Gradients that are going to be derived again: those of some layers by formulas of ours, where torch's are dear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from cockpit.engine.derivatives import batch_norm, convolution, gelu, layer_norm
from cockpit.engine.derivatives.graph import nodes_behind
from cockpit.engine.derivatives.known import derived_by

LAYERS = {
    "ConvolutionBackward0": convolution.made_of,
    "CudnnBatchNormBackward0": batch_norm.made_of,
    "GeluBackward0": gelu.made_of,
    "NativeBatchNormBackward0": batch_norm.made_of,
    "NativeLayerNormBackward0": layer_norm.made_of,
}


@contextmanager
def lean_gradients(starts: Iterable[Tensor]) -> Iterator[None]:
    """Let gradients that are computed inside the block be derived by our formulas; they stay the same."""
    nodes = {node for start in starts for node in nodes_behind(start) if node.name() in LAYERS}
    handles = [node.register_hook(derived_by(node, LAYERS[node.name()])) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
