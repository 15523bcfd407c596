r"""The exact fallback: individual gradients row by row from the live graph, for whatever no formula knows.

$g_i = \nabla\ell_i$ by backward passes with one-hot output gradients, many at once under ``vmap``; where an
operation has no batching rule, one after the other. The graph is that of the user's own forward pass, so dropout
masks, routing decisions and batch statistics are the ones the training sees, and any coupling between examples
is differentiated exactly. Cost: N backward passes through the part of the network above the parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from cockpit.engine.derivatives.derive import derivatives
from cockpit.engine.gradients.individual import BLOCK


def rows(
    losses: Tensor, parameters: Mapping[str, Tensor], vectorised: bool = True
) -> Iterator[tuple[dict[str, Tensor], bool]]:
    """Yield blocks of individual gradients, {name: [n, *shape]}, and whether ``vmap`` served them."""
    numbers = sum(p.numel() for p in parameters.values())
    size = max(1, BLOCK // max(1, numbers))
    n = len(losses)
    for begin in range(0, n, size):
        stop = min(begin + size, n)
        weights = torch.zeros(stop - begin, n, dtype=losses.dtype, device=losses.device)
        weights[:, begin:stop].fill_diagonal_(1)
        block = None
        if vectorised:
            block = _vectorised([losses], list(parameters.values()), [weights])
        if block is None:
            vectorised = False
            block = _looped([losses], list(parameters.values()), [weights])
        yield dict(zip(parameters, block, strict=True)), vectorised


def _vectorised(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap warns about operations it serves one by one
            grads = derivatives(outputs, parameters, weights, batched=True)
    except Exception:  # no batching rule, data-dependent backward, a hook of the user's that reads numbers
        return None
    k = len(weights[0])
    return [p.new_zeros(k, *p.shape) if g is None else g for g, p in zip(grads, parameters, strict=True)]


def _looped(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    result = [p.new_zeros(len(weights[0]), *p.shape) for p in parameters]
    for k in range(len(weights[0])):
        grads = derivatives(outputs, parameters, [w[k] for w in weights])
        for row, g in zip(result, grads, strict=True):
            if g is not None:
                row[k] = g
    return result
