"""Gradients that are going to be derived again: those of some layers by formulas of ours, where torch's are dear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from cockpit.engine.derivatives import batch_norm, convolution, gelu
from cockpit.engine.derivatives.graph import nodes_behind

LAYERS = {
    "ConvolutionBackward0": convolution.derived,
    "CudnnBatchNormBackward0": batch_norm.derived,
    "GeluBackward0": gelu.derived,
    "NativeBatchNormBackward0": batch_norm.derived,
}


@contextmanager
def lean_gradients(starts: Iterable[Tensor]) -> Iterator[None]:
    """Let gradients that are computed inside the block be derived by our formulas; they stay the same."""
    nodes = {node for start in starts for node in nodes_behind(start) if node.name() in LAYERS}
    handles = [node.register_hook(LAYERS[node.name()](node)) for node in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
