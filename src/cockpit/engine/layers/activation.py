"""Activations with parameters."""

from torch import Tensor, nn

from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.numbers.precision import wide


def _features(module: nn.Module, out: Tensor) -> int:
    """Slopes for channels fix the batch axis (channels are axis 1); a single slope fixes nothing."""
    assert isinstance(module.weight, Tensor)
    return out.ndim - 1 if len(module.weight) > 1 else min(1, out.ndim - 1)


@formula(nn.PReLU, features=_features)
def prelu(call: Call) -> dict[str, Part]:
    r"""$y = \max(0, x) + w \min(0, x)$: $g_i = \sum_t \min(0, x_{it}) \delta_{it}$, by channel or in all."""
    weight, dy = call.module.weight, call.grad
    assert isinstance(weight, Tensor)
    products = wide(call.input).clamp_max(0) * wide(dy)
    if len(weight) == 1:
        return {"weight": Dense(call.split(products, 0).sum(1, keepdim=True))}
    by_channel = call.split(products, dy.ndim - 1)  # [N, R, C, *space]
    return {"weight": Dense(by_channel.sum((1, *range(3, by_channel.ndim))))}
