"""Small parameters whose gradients are written out (biases, scales): their squares are summed side by side.

On a GPU the launches for each of them take longer than all their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cockpit.engine.curvature.column_sums import Columns
from cockpit.engine.gradients.parts import Dense
from cockpit.engine.numbers.sums import square_sum

LARGEST = 8192
"""Numbers in a parameter, at most."""


def bunched(uses: Mapping[str, list[Columns]], names: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the sums over examples of the squared gradients of such parameters, where there is one column."""
    written: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
    for name, calls in uses.items():
        if len(calls) > 1 or calls[0].count > 1 or calls[0].once:
            continue
        part = calls[0].alone(name, names)
        if isinstance(part, Dense) and part.shape.numel() <= LARGEST:
            g = part.gradients
            written.setdefault((g.dtype, g.device), {})[name] = g
    found: dict[str, Tensor] = {}
    for some in written.values():
        rows = [g.flatten(1) for g in some.values()]
        sums = square_sum(torch.cat(rows, 1)).split([x.shape[1] for x in rows])
        found |= {name: total.view(g.shape[1:]) for (name, g), total in zip(some.items(), sums, strict=True)}
    return found
