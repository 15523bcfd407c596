r"""Moves: the step an optimiser has just taken or is about to take, read from its state.

The step `taken` needs no copy of the parameters then:

* SGD with momentum has moved by $-\eta\,b$ with the buffer $b$ that it keeps, whatever went into it (weight decay,
  dampening): nothing is copied at all.
* Adam (Kingma and Ba, 2015) has moved by $a = -\eta\,\hat m / (\sqrt{\hat v} + \epsilon)$; with decoupled weight decay
  $\lambda$ (AdamW; Loshchilov and Hutter, 2019) it was $\theta' = (1 - \eta\lambda)\theta + a$, so that the step is
  $\theta' - \theta = (a - \eta\lambda\theta') / (1 - \eta\lambda)$.

That is exact but for the rounding of $\theta + a$; where that matters, in half precision, parameters are compared.

The step that is `coming` follows from the state with one more gradient $g$ (with coupled weight decay,
$g + \lambda\theta$): $b \leftarrow \mu b + (1 - d)\, g$ with momentum $\mu$ and dampening $d$;
$m \leftarrow \beta_1 m + (1 - \beta_1)\, g$ and $v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$.
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
    squares = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].detach()
    move = _adam(state["exp_avg"].detach(), squares.sqrt(), _steps(state), group, rate)
    return move.sub_(p, alpha=decay).div_(1 - decay) if decay else move


def _adam(mean: Tensor, root: Tensor, steps: float | Tensor, group: Mapping[str, Any], rate: float) -> Tensor:
    """Return Adam's step by its moments, in the place of the root of the second one."""
    first, second = group["betas"]
    spread = root.div_((1 - second**steps) ** 0.5).add_(group["eps"])
    return torch.div(mean, spread, out=spread).mul_(-rate / (1 - first**steps))


def _steps(state: Mapping[str, Any]) -> float | Tensor:
    steps: float | Tensor = state["step"]
    return float(steps) if not isinstance(steps, Tensor) or steps.device.type == "cpu" else steps


def foreseeable(optimizer: Optimizer) -> bool:
    """Say whether an optimiser's coming steps follow from gradients and its state, as far as can be known before."""
    if (
        type(optimizer) not in (SGD, Adam, AdamW)
        or len(getattr(optimizer, "_optimizer_step_post_hooks", ())) > 1
    ):
        return False
    return not any([g["differentiable"] for g in optimizer.param_groups]) and all(
        [p.dtype in WIDE for g in optimizer.param_groups for p in g["params"]]
    )


def settings(optimizer: Optimizer) -> list[Any]:
    """Return what a coming step depends on besides gradients and state: what a loss scaler hands over, too."""
    scaled = getattr(optimizer, "grad_scale", None) is None and getattr(optimizer, "found_inf", None) is None
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return [scaled, [{k: float(v) if isinstance(v, Tensor) else v for k, v in g.items()} for g in groups]]


@torch.no_grad()
def coming(optimizer: Optimizer, groups: Mapping[int, Mapping[str, Any]], p: Tensor) -> Tensor | None:
    """Return the step that a parameter will take with the gradient that it has, or None: the state does not tell it.

    ``groups`` are the optimiser's, by the ``id`` of their parameters.
    """
    group = groups.get(id(p))
    if group is None or p.grad is None:  # then it does not move
        return torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
    if p.grad.layout is not torch.strided:
        return None
    state, rate, decay = optimizer.state.get(p, {}), float(group["lr"]), group["weight_decay"]
    gradient = -p.grad if group["maximize"] else p.grad.detach()
    decoupled = type(optimizer) is not SGD and group.get("decoupled_weight_decay", type(optimizer) is AdamW)
    if decay and not decoupled:
        gradient = gradient.add(p.detach(), alpha=decay)
    if type(optimizer) is SGD:
        return _by_buffer(gradient, state.get("momentum_buffer"), group).mul(-rate)
    first, second = group["betas"]
    mean, squares = gradient.mul(1 - first), gradient.square().mul_(1 - second)
    if state:
        mean.add_(state["exp_avg"], alpha=first)
        squares.add_(state["exp_avg_sq"], alpha=second)
        if group["amsgrad"]:
            torch.maximum(squares, state["max_exp_avg_sq"], out=squares)
    move = _adam(mean, squares.sqrt_(), (_steps(state) if state else 0) + 1, group, rate)
    return move.sub_(p.detach(), alpha=rate * decay) if decoupled and decay else move


def _by_buffer(gradient: Tensor, buffer: Tensor | None, group: Mapping[str, Any]) -> Tensor:
    momentum = group["momentum"]
    if not momentum:
        return gradient
    after = gradient if buffer is None else gradient.mul(1 - group["dampening"]).add_(buffer, alpha=momentum)
    return gradient.add(after, alpha=momentum) if group["nesterov"] else after
