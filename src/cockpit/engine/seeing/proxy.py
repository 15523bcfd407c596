r"""Stand-ins for losses that nobody handed over.

With the gradient $\delta_i = \partial L/\partial f_i$ that arrives at the model's outputs, $N f_i^\top \delta_i$
(with $\delta$ held fixed) has the same gradient as $\ell_i$ if the objective is the mean of per-example
losses. So everything of first order works as with losses; their values and their curvature are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


class Proxy:
    """Waits for the gradients at a model's outputs and turns them into stand-in losses, once."""

    def __init__(
        self,
        outputs: Sequence[Tensor],
        examples: int,
        ready: Callable[[Tensor, int], None],
        began: Callable[[], None] = lambda: None,
    ) -> None:
        self.examples, self.began, self.ready = examples, began, ready
        # Held here and not by the hook: a graph that owns its own outputs is never freed.
        self.outputs = [t for t in outputs if t.ndim > 0 and t.shape[0] == examples]
        self.handles: list[RemovableHandle] = []
        if self.waiting:
            register = torch.autograd.graph.register_multi_grad_hook
            self.handles.append(register(self.outputs, partial(_first, self), mode="any"))
            self.handles.append(register(self.outputs, partial(_arrived, self)))

    @property
    def waiting(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self.outputs and self.examples)

    def remove(self) -> None:
        """Stop waiting and let go of the outputs."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.outputs = []


def _first(proxy: Proxy, grad: Tensor) -> None:
    if proxy.waiting:
        proxy.began()


def _arrived(proxy: Proxy, grads: Any) -> None:
    outputs, proxy.outputs = proxy.outputs, []
    if not outputs:
        return
    with torch.enable_grad():
        terms = [
            (f.flatten(1) if f.ndim > 1 else f[:, None]) * g.detach().reshape(len(g), -1)
            for f, g in zip(outputs, grads, strict=True)
            if g is not None
        ]
        if terms:
            proxy.ready(proxy.examples * torch.stack([t.sum(1) for t in terms]).sum(0), proxy.examples)
