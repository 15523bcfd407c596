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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

Taken = dict[str, tuple[Tensor, float]]
"""The step taken: of every parameter a tensor and a factor."""
WIDE = (torch.float32, torch.float64)
BLOCK = 2**16
"""How many numbers of a coming step are computed at a time on a CPU."""


def readable(optimizer: Optimizer) -> bool:
    """Say whether an optimiser's state will tell its steps, as far as can be known before."""
    if _shared(optimizer):
        return False
    if type(optimizer) is SGD:
        return all(
            [g["momentum"] and not g["nesterov"] and not g["differentiable"] for g in optimizer.param_groups]
        )
    return type(optimizer) in (Adam, AdamW) and not any([g["differentiable"] for g in optimizer.param_groups])


def _shared(optimizer: Optimizer) -> bool:
    """Say whether others than we listen to its steps, who may move parameters, too."""
    return len(getattr(optimizer, "_optimizer_step_post_hooks", ())) > 1


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
    if _shared(optimizer) or type(optimizer) not in (SGD, Adam, AdamW):
        return False
    return not any([g["differentiable"] for g in optimizer.param_groups]) and all(
        [p.dtype in WIDE for g in optimizer.param_groups for p in g["params"]]
    )


class Coming:
    """Tells an optimiser's coming step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}

    def rate(self, parameter: Tensor) -> float:
        """Return a parameter's learning rate; what is not the optimiser's does not move at any."""
        group = self._groups.get(id(parameter))
        return 1.0 if group is None else float(group["lr"])

    def settings(self) -> list[Any]:
        """Return what steps depend on besides gradients, state and rates: what a loss scaler hands over, too."""
        optimizer, own = self._optimizer, ("params", "lr")
        scaler = [getattr(optimizer, name, None) is None for name in ("grad_scale", "found_inf")]
        return [scaler, [{k: v for k, v in g.items() if k not in own} for g in optimizer.param_groups]]

    @torch.no_grad()
    def tell(self, parameter: Tensor) -> Tensor | None:
        """Return the step that a parameter will take with the gradient in ``.grad``; None: the state does not tell."""
        p, optimizer, group = parameter.detach(), self._optimizer, self._groups.get(id(parameter))
        if group is None or parameter.grad is None:
            return torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
        if parameter.grad.layout is not torch.strided:
            return None
        state, rate, decay = optimizer.state.get(parameter, {}), self.rate(parameter), group["weight_decay"]
        if type(optimizer) is SGD:
            gradient = _downhill(p, parameter.grad, group, decay)
            return _by_buffer(gradient, state.get("momentum_buffer"), group, -rate)
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        steps, found = (_steps(state) if state else 0) + 1, torch.empty_like(p)
        moments = [state[name] for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if name in state]
        for block, values, gradient, *past in _blocks([found, p, parameter.grad.detach(), *moments]):
            given = _downhill(values, gradient, group, 0.0 if decoupled else decay)
            block.copy_(_by_new_moments(given, past, steps, group, rate))
            if decoupled:
                block.sub_(values, alpha=rate * decay)
        return found


def _downhill(p: Tensor, gradient: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
    """Return the gradient of what is minimised, with coupled weight decay."""
    gradient = -gradient if group["maximize"] else gradient.detach()
    return gradient.add(p, alpha=decay) if decay else gradient


def _blocks(tensors: Sequence[Tensor]) -> Iterable[Sequence[Tensor]]:
    """Return tensors of one shape in pieces: what is computed on the way from one to the next need not be as large."""
    if tensors[0].is_cuda or not all([t.is_contiguous() for t in tensors]):
        return [tensors]
    return zip(*[t.view(-1).split(BLOCK) for t in tensors], strict=True)


def _by_new_moments(
    gradient: Tensor, past: Sequence[Tensor], steps: float | Tensor, group: Mapping[str, Any], rate: float
) -> Tensor:
    """Return Adam's step with one more gradient; ``past``: its moments before, and the largest second one."""
    first, second = group["betas"]
    mean, squares = gradient.mul(1 - first), gradient.square().mul_(1 - second)
    if past:
        mean.add_(past[0], alpha=first)
        squares.add_(past[1], alpha=second)
        if group["amsgrad"]:
            torch.maximum(squares, past[2], out=squares)
    return _adam(mean, squares.sqrt_(), steps, group, rate)


def _by_buffer(gradient: Tensor, buffer: Tensor | None, group: Mapping[str, Any], factor: float) -> Tensor:
    """Return a multiple of what SGD moves along: the gradient, its buffer with this gradient, or both (Nesterov)."""
    momentum = group["momentum"]
    fresh = 1.0 if buffer is None or not momentum else 1 - group["dampening"]
    past = 0.0 if buffer is None else momentum
    if momentum and group["nesterov"]:
        fresh, past = 1 + momentum * fresh, momentum * past
    move = gradient.mul(factor * fresh)
    return move if buffer is None or not past else move.add_(buffer, alpha=factor * past)
