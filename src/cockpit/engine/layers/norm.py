r"""Normalisation layers: $y = \gamma \hat x + \beta$ with a normalised input that has no parameters.

$g_i^\gamma = \sum_t \hat x_{it} \odot \delta_{it}$ and $g_i^\beta = \sum_t \delta_{it}$, over the positions
t of example i. In a BatchNorm that uses the statistics of its batch, an example's loss depends on the other
examples' rows; there $g_i$ is the *row contribution*, what example i's rows add to the gradient of the
summed loss.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit.engine import native
from cockpit.engine.gradients.parts import Dense, Part
from cockpit.engine.kernels import moments, normed
from cockpit.engine.kernels.trial import tried
from cockpit.engine.layers.formula import Call, formula
from cockpit.engine.numbers.precision import wide


def _scale_and_shift(xhat: Tensor, dy: Tensor, positions: tuple[int, ...] = (1,)) -> dict[str, Part]:
    """Sum over the axes that count positions; axis 0 holds the examples."""
    return {"weight": Dense((xhat * dy).sum(positions)), "bias": Dense(dy.sum(positions))}


def _but_channels(x: Tensor) -> tuple[int, ...]:
    """Return the axes that count positions in images [N, R, C, *space]."""
    return (1, *range(3, x.ndim))


def _normalized_axes(module: nn.Module, out: Tensor) -> int:
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    return len(module.normalized_shape)


def _all_but_first(module: nn.Module, out: Tensor) -> int:
    return out.ndim - 1


@formula(nn.LayerNorm, features=_normalized_axes)
def layer_norm(call: Call) -> dict[str, Part]:
    r"""$\hat x$: zero mean and unit variance over the last axes."""
    m = call.module
    assert isinstance(m, nn.LayerNorm)
    axes = len(m.normalized_shape)
    x, dy = (call.split(t, axes) for t in (call.input, call.grad))
    if normed.takes(x, dy) and (
        found := tried("normed", partial(normed.scale_and_shift, x, dy, m.eps, True))
    ):
        return {"weight": Dense(found[0]), "bias": Dense(found[1])}
    x, dy = wide(x), wide(dy)
    return _scale_and_shift(F.layer_norm(x, m.normalized_shape, eps=m.eps).to(dy), dy)


@formula(nn.RMSNorm, features=_normalized_axes)
def rms_norm(call: Call) -> dict[str, Part]:
    r"""$\hat x$: unit mean square over the last axes."""
    m = call.module
    assert isinstance(m, nn.RMSNorm)
    axes = len(m.normalized_shape)
    x, dy = (call.split(t, axes) for t in (call.input, call.grad))
    eps = torch.finfo(wide(x[:0]).dtype).eps if m.eps is None else m.eps
    if normed.takes(x, dy) and (found := tried("normed", partial(normed.scale_and_shift, x, dy, eps, False))):
        return {"weight": Dense(found[0])}
    x, dy = wide(x), wide(dy)
    xhat = F.rms_norm(x, list(m.normalized_shape), eps=m.eps).to(dy)
    return {"weight": Dense((xhat * dy).sum(1))}


@formula(nn.GroupNorm, features=_all_but_first)
def group_norm(call: Call) -> dict[str, Part]:
    r"""$\hat x$: zero mean and unit variance over each group of channels of each image."""
    m = call.module
    assert isinstance(m, nn.GroupNorm)
    features = call.grad.ndim - 1
    x, dy = (wide(call.split(t, features)) for t in (call.input, call.grad))
    xhat = F.group_norm(x.flatten(0, 1), m.num_groups, eps=m.eps).view_as(x).to(dy)
    return _scale_and_shift(xhat, dy, _but_channels(dy))


def _instance_axes(module: nn.Module, out: Tensor) -> int:
    spatial = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
    return 1 + next(axes for cls, axes in spatial.items() if isinstance(module, cls))


@formula(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, features=_instance_axes)
def instance_norm(call: Call) -> dict[str, Part]:
    r"""$\hat x$: zero mean and unit variance over each channel of each image, or by running statistics."""
    m = call.module
    assert isinstance(m, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d)
    features = _instance_axes(m, call.grad)
    x, dy = (wide(call.split(t, features)) for t in (call.input, call.grad))
    images = x.flatten(0, 1)
    if m.training or not m.track_running_stats:
        xhat = F.instance_norm(images, eps=m.eps)
    else:
        xhat = _by_running_statistics(m, images)
    return _scale_and_shift(xhat.view_as(x).to(dy), dy, _but_channels(dy))


def _spans_processes(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    if not (isinstance(module, nn.SyncBatchNorm) and _uses_batch(module)):
        return None
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size(module.process_group) > 1
    return "its statistics are those of several processes" if together else None


@formula(
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    features=_all_but_first,
    refuses=_spans_processes,
)
def batch_norm(call: Call) -> dict[str, Part]:
    r"""$\hat x$ by the statistics of this batch (row contributions) or by the running ones."""
    m = call.module
    assert isinstance(m, nn.modules.batchnorm._BatchNorm)
    features = call.grad.ndim - 1
    if _uses_batch(m) and call.simple:
        here = partial(moments.scale_and_shift, call.input, call.grad, m.eps)
        found = tried("moments", here) if moments.takes(call.input, call.grad) else None
        found = native.scale_and_shift(call.input, call.grad, m.eps) if found is None else found
        if found is not None:
            return {"weight": Dense(found[0]), "bias": Dense(found[1])}
    x = wide(call.input)
    # eval leaves the running statistics alone, so they are still those of the forward pass
    xhat = (
        F.batch_norm(x, None, None, training=True, eps=m.eps)
        if _uses_batch(m)
        else _by_running_statistics(m, x)
    )
    dy = wide(call.split(call.grad, features))
    return _scale_and_shift(call.split(xhat, features).to(dy), dy, _but_channels(dy))


def _uses_batch(m: nn.modules.batchnorm._NormBase) -> bool:
    return m.training or m.running_mean is None or m.running_var is None


def _by_running_statistics(m: nn.modules.batchnorm._NormBase, x: Tensor) -> Tensor:
    assert m.running_mean is not None
    assert m.running_var is not None
    return F.batch_norm(x, m.running_mean.to(x), m.running_var.to(x), training=False, eps=m.eps)
