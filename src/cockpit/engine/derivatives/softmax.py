r"""The gradient of a softmax, $s = p\,(d - \langle p, d\rangle)$, and its derivative by two looks at every row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cockpit.engine import native
from cockpit.engine.derivatives.walked import Walked


class SoftmaxGradient(Walked):
    """The gradient of softmax at its result p, if d is that of its result."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, d: Tensor) -> Tensor:
        """Return p (d - ⟨p, d⟩); sums are over the last axis."""
        SoftmaxGradient.note(ctx, p, d)
        ctx.save_for_backward(p, d)
        return torch._softmax_backward_data(d, p, -1, p.dtype)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives by p and d, in operations of torch where they are going to be derived again."""
        p, d = ctx.saved_tensors
        found = None if torch.is_grad_enabled() or not native.is_there(v) else native.softmax_twice(v, p, d)
        if found is not None:
            return found
        of_v, of_d = ((p * t).sum(-1, keepdim=True) for t in (v, d))
        return v * (d - of_d) - d * of_v, p * (v - of_v)
