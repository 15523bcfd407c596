"""Linear and Bilinear layers with any leading axes."""

import torch
from torch import Tensor, nn

from cockpit.engine.gradients import individual
from cockpit.engine.gradients.parts import Dense, Lazy, Outer, Part
from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.numbers.precision import wide


@formula(nn.Linear, features=1)
def linear(call: Call) -> dict[str, Part]:
    r"""$g_i = \sum_t \delta_{it} a_{it}^\top$, bias $\sum_t \delta_{it}$."""
    weight = call.module.weight
    assert isinstance(weight, Tensor)
    a, b = call.split(call.input, 1), call.split(call.grad, 1)
    if b.dtype == torch.bfloat16 and b.is_cuda:  # which has products summed in float32
        a = a.to(b)  # autocast rounded it, too
    else:
        a, b = wide(a), wide(b)
    parts: dict[str, Part] = {"weight": outer(a, b, weight)}
    if call.module.bias is not None:  # the sum takes as long to read as the products do
        parts["bias"] = Dense(wide(b[:, 0]) if b.shape[1] == 1 else b.sum(1, dtype=wide(b[:0]).dtype))
    return parts


@formula(nn.Bilinear, features=1)
def bilinear(call: Call) -> dict[str, Part]:
    r"""A linear layer whose input is $x_1 \otimes x_2$, which is formed for a few examples at a time."""
    given, weight = call.arguments, call.module.weight
    assert isinstance(weight, Tensor)
    b = wide(call.split(call.grad, 1))
    x1, x2 = (wide(call.split(given[name], 1)).to(b) for name in ("input1", "input2"))

    def block(start: int, stop: int) -> Outer:
        pairs = x1[start:stop, :, :, None] * x2[start:stop, :, None, :]
        return outer(pairs.flatten(2), b[start:stop], weight)

    examples, uses, outputs = b.shape
    numbers = uses * (x1.shape[2] * x2.shape[2] + outputs)
    size = max(1, individual.BLOCK // numbers)
    return {"weight": Lazy(block, examples, weight.shape, size), "bias": Dense(b.sum(1))}


def outer(a: Tensor, b: Tensor, weight: Tensor) -> Outer:
    """Return the part of a weight [O, I] with inputs ``a`` [N, T, I] and output gradients ``b`` [N, T, O]."""
    return Outer(a[:, None].to(b), b[:, None], weight.shape)
