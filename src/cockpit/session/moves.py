r"""Moves: the step an optimiser has just taken, read from its state instead of from a copy of the parameters.

* SGD with momentum has moved by $-\eta\,b$ with the buffer $b$ that it keeps, whatever went into it (weight decay,
  dampening): nothing is copied at all.
* Adam (Kingma and Ba, 2015) has moved by $a = -\eta\,\hat m / (\sqrt{\hat v} + \epsilon)$; with decoupled weight decay
  $\lambda$ (AdamW; Loshchilov and Hutter, 2019) it was $\theta' = (1 - \eta\lambda)\theta + a$, so that the step is
  $\theta' - \theta = (a - \eta\lambda\theta') / (1 - \eta\lambda)$.

That is exact but for the rounding of $\theta + a$; where that matters, in half precision, parameters are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

Taken = dict[str, tuple[Tensor, float]]
"""The step taken: of every parameter a tensor and a factor."""
WIDE = (torch.float32, torch.float64)


def readable(optimizer: Optimizer) -> bool:
    """Say whether an optimiser's state will tell its steps, as far as can be known before."""
    if (
        len(getattr(optimizer, "_optimizer_step_post_hooks", ())) > 1
    ):  # others than ours may move parameters, too
        return False
    if type(optimizer) is SGD:
        return all(
            [g["momentum"] and not g["nesterov"] and not g["differentiable"] for g in optimizer.param_groups]
        )
    return type(optimizer) in (Adam, AdamW) and not any([g["differentiable"] for g in optimizer.param_groups])


def taken(optimizer: Optimizer, names: Mapping[int, str], rates: list[float]) -> Taken | None:
    """Return the step just taken by the parameters named (by their ``id``), or None: the state does not tell it.

    ``rates`` are the groups' learning rates at that step.
    """
    if getattr(optimizer, "found_inf", None) is not None:  # a fused step that a loss scaler may have left out
        return None
    found: Taken = {}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        for p in group["params"]:
            name = names.get(id(p))
            if name is None:
                continue
            if p.grad is None:  # then it has not moved
                found[name] = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape), 0.0
                continue
            state = optimizer.state.get(p)
            if not state or p.dtype not in WIDE or p.grad.layout is not torch.strided:
                return None
            if type(optimizer) is SGD:
                found[name] = state["momentum_buffer"].detach(), -rate
                continue
            decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
            decay = rate * group["weight_decay"] if decoupled else 0.0
            found[name] = _by_moments(p.detach(), state, group, rate, decay), 1.0
    return found if len(found) == len(names) else None


def _by_moments(
    p: Tensor, state: Mapping[str, Any], group: Mapping[str, Any], rate: float, decay: float
) -> Tensor:
    first, second = group["betas"]
    steps = state["step"]
    steps = float(steps) if not isinstance(steps, Tensor) or steps.device.type == "cpu" else steps
    squares = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].detach()
    spread = squares.sqrt().div_((1 - second**steps) ** 0.5).add_(group["eps"])
    move = torch.div(state["exp_avg"].detach(), spread, out=spread).mul_(-rate / (1 - first**steps))
    return move.sub_(p, alpha=decay).div_(1 - decay) if decay else move
