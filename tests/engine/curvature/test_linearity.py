"""What the graph shows of linearity, against second derivatives of the outputs themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine.curvature.linearity import is_linear_in_each
from cockpit.testing import Problem, problems

F64 = torch.float64
Network = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A network of an input [5, 4], a weight [4, 4] and another one."""


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, u, w = (torch.randn(n, 4, dtype=F64, generator=generator) for n in (5, 4, 4))
    return x, u.requires_grad_(), w.requires_grad_()


def curvature(outputs: Tensor, parameter: Tensor) -> float:
    """Return the largest second derivative of random combinations of the outputs, along random directions."""
    generator = torch.Generator().manual_seed(1)
    weights, direction = (torch.randn(x.shape, dtype=F64, generator=generator) for x in (outputs, parameter))
    (slope,) = torch.autograd.grad((outputs * weights).sum(), parameter, create_graph=True, allow_unused=True)
    if slope is None or not slope.requires_grad:
        return 0.0
    (second,) = torch.autograd.grad(
        (slope * direction).sum(), parameter, retain_graph=True, allow_unused=True
    )
    return 0.0 if second is None else float(second.abs().max())


LINEAR: dict[str, Network] = {
    "matrices": lambda x, u, w: (x @ u).relu() @ w,
    "residual": lambda x, u, w: x @ u + F.leaky_relu(x @ u) @ w,
    "masked": lambda x, u, w: (x @ u * (x > 0)) @ w,
    "divided": lambda x, u, w: (x @ u / 3 / x.abs()) @ w,
    "moved": lambda x, u, w: torch.cat([x @ u, x @ w]).flip(0)[1:].T.contiguous().view(2, 2, -1),
    "chosen": lambda x, u, w: torch.where(x > 0, x @ u, (x @ w).clamp(-1, 1)).max(1)[0],
    "pooled": lambda x, u, w: F.max_pool2d(F.avg_pool2d((x @ u)[None, None], 2), 2),
    "convolved": lambda x, u, w: F.conv1d((x @ u)[None], w[:3, None].expand(3, 5, 4)),
    "weights of one": lambda x, u, w: F.linear(x, u, w[0]),
    "weight by weight": lambda x, u, w: x @ (u * w),
    "maximum": lambda x, u, w: torch.maximum(x @ u, x @ w).abs(),
    "one of them alone": lambda x, u, w: x @ u,
}

CURVED: dict[str, Network] = {
    "tanh": lambda x, u, w: (x @ u).tanh() @ w,
    "squared": lambda x, u, w: (x @ u) ** 2,
    "used twice": lambda x, u, w: (x @ u).relu() @ u,
    "with itself": lambda x, u, w: (x @ u) * (x @ u),
    "its own scale": lambda x, u, w: x @ u / u.norm(),
    "a quotient": lambda x, u, w: x @ u / (2 + x @ w),
    "normed": lambda x, u, w: F.layer_norm(x @ u, (4,)) @ w,
    "attended": lambda x, u, w: (x @ u).softmax(1) @ w,
    "met again": lambda x, u, w: ((x @ u).relu() @ w) * (x @ u)[:, :4],
}


@pytest.mark.parametrize("name", LINEAR)
def test_piecewise_linear_networks_are_found(name: str) -> None:
    x, u, w = tensors()
    outputs = LINEAR[name](x, u, w)
    assert is_linear_in_each([outputs], [u, w])
    assert curvature(outputs, u) == curvature(outputs, w) == 0


@pytest.mark.parametrize("name", CURVED)
def test_others_are_not(name: str) -> None:
    x, u, w = tensors()
    outputs = CURVED[name](x, u, w)
    assert not is_linear_in_each([outputs], [u, w])
    assert max(curvature(outputs, u), curvature(outputs, w)) > 0


def test_what_is_curved_in_a_frozen_weight_alone_is_linear() -> None:
    x, u, w = tensors()
    outputs = (x @ u.tanh()) @ w
    assert not is_linear_in_each([outputs], [u, w])
    assert is_linear_in_each([outputs], [w])


def test_every_output_counts() -> None:
    x, u, w = tensors()
    assert is_linear_in_each([x @ u, x @ w], [u, w])
    assert not is_linear_in_each([x @ u, (x @ w).exp()], [u, w])


def test_a_function_of_the_users_is_not_trusted_by_its_name() -> None:
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.square()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            return g

    Relu.__name__ = "Relu"
    x, u, _ = tensors()
    outputs = Relu.apply(x @ u)  # type: ignore[no-untyped-call]
    outputs.grad_fn.__class__.__name__ = "ReluBackward0"
    assert not is_linear_in_each([outputs], [u])


@pytest.mark.parametrize("p", [p for p in problems() if p.outputs], ids=lambda p: p.name)
def test_the_zoo_has_no_curvature_where_its_graphs_say_so(p: Problem) -> None:
    torch.manual_seed(0)
    model = p.build()
    inputs, _ = p.batch(4)
    outputs = model(*inputs)
    parameters = [x for x in model.parameters() if x.requires_grad]
    if is_linear_in_each([outputs], parameters):
        assert max(curvature(outputs, x) for x in parameters) < 1e-12


def test_the_zoo_has_both_kinds() -> None:
    kinds = {}
    for name in ("mlp", "conv2d", "mlp_tanh"):
        p = next(p for p in problems() if p.name == name)
        model = p.build()
        kinds[name] = is_linear_in_each([model(*p.batch(2)[0])], list(model.parameters()))
    assert kinds == {"mlp": True, "conv2d": True, "mlp_tanh": False}


def test_long_chains_do_not_exhaust_the_stack() -> None:
    x, u, _ = tensors()
    outputs = x @ u
    for _ in range(5000):
        outputs = outputs + 1
    assert is_linear_in_each([outputs], [u])


def test_every_operation_is_looked_at_once() -> None:
    """Paths through residual blocks double with each of them; nodes do not."""
    model = nn.Sequential(*(nn.Linear(4, 4, dtype=F64) for _ in range(60)))
    hidden = torch.ones(2, 4, dtype=F64)
    for layer in model:
        hidden = hidden + layer(hidden).relu()
    assert is_linear_in_each([hidden], list(model.parameters()))
