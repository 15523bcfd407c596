"""Versions: what tells whether somebody has written into tensors since they were looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

Versions = Sequence[tuple[int, int] | None]
"""Tensors' identities and how often each has been written into; None where there is none."""


def gradient_versions(parameters: Mapping[str, Tensor]) -> Versions:
    """Return what identifies the present content of every ``.grad``, in the order of the parameters."""
    return [None if (grad := p.grad) is None else (id(grad), grad._version) for p in parameters.values()]
