"""Euclidean norms of a vector that is split into parameters."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.quantities.quantity import Reading


def norms(parts: Mapping[str, Tensor]) -> Reading:
    """Return each parameter's norm and the root of their sum of squares."""
    each = {name: torch.linalg.vector_norm(part, dtype=torch.float64) for name, part in parts.items()}
    return Reading(torch.linalg.vector_norm(torch.stack(list(each.values()))), each)
