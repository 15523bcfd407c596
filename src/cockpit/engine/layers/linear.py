"""Linear and Bilinear layers with any leading axes."""

from torch import nn

from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.parts import Dense, Outer, Part, wide


@formula(nn.Linear, features=1)
def linear(call: Call) -> dict[str, Part]:
    """$g_i = \\sum_t \\delta_{it} a_{it}^\\top$, bias $\\sum_t \\delta_{it}$."""
    (dy,) = call.grads
    assert dy is not None
    a, b = wide(call.split(call.args[0], 1)), wide(call.split(dy, 1))
    weight = call.module.weight
    return {"weight": Outer(a[:, None].to(b), b[:, None], weight.shape), "bias": Dense(b.sum(1))}
