from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cockpit.engine.layers.formula import formula_for
from cockpit.engine.numbers.precision import wide
from layer_check import by_autograd, check, compare, filled, gradients_of, normal, trace

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer, tokens": (lambda: nn.LayerNorm(5), (4, 3, 5)),
    "layer, plain": (lambda: nn.LayerNorm(5), (4, 5)),
    "layer, two axes": (lambda: nn.LayerNorm((3, 5)), (4, 2, 3, 5)),
    "layer, no bias": (lambda: nn.LayerNorm(5, bias=False), (4, 3, 5)),
    "rms": (lambda: nn.RMSNorm(5), (4, 3, 5)),
    "rms, eps": (lambda: nn.RMSNorm((3, 5), eps=1e-3), (4, 3, 5)),
    "group, plain": (lambda: nn.GroupNorm(2, 6), (4, 6)),
    "group, images": (lambda: nn.GroupNorm(3, 6), (4, 6, 3, 2)),
    "instance 1d": (lambda: nn.InstanceNorm1d(3, affine=True), (4, 3, 5)),
    "instance 2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (4, 3, 2, 5)),
    "instance 3d": (lambda: nn.InstanceNorm3d(3, affine=True), (4, 3, 2, 2, 3)),
}


@pytest.mark.parametrize("which", LAYERS)
def test_is_autograd_for_each_example(which: str) -> None:
    make, shape = LAYERS[which]
    check(filled(make()), normal(*shape), n=4)
    check(filled(make()), normal(*shape), n=4, again=(normal(*shape, seed=1),), keep=[3, 0])


@pytest.mark.parametrize("which", LAYERS)
def test_folded_batches_in_both_orders(which: str) -> None:
    make, shape = LAYERS[which]
    for pick in (0, 1):
        check(filled(make()), normal(8, *shape[1:]), n=4, pick=pick)


def test_examples_on_a_later_axis() -> None:
    check(filled(nn.LayerNorm(5)), normal(3, 4, 5), n=4)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.LayerNorm(5), (5,)),
        (lambda: nn.InstanceNorm1d(3, affine=True), (3, 4)),
        (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (3, 4, 2)),
    ],
)
def test_a_call_without_batch_axis(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    check(filled(make()), normal(*shape), n=1)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (4, 3, 2, 5)),
        (lambda: nn.BatchNorm1d(3), (4, 3)),
        (lambda: nn.BatchNorm1d(3), (4, 3, 5)),
        (lambda: nn.BatchNorm2d(3), (4, 3, 2, 5)),
        (lambda: nn.BatchNorm3d(3), (4, 3, 2, 2, 2)),
        (lambda: nn.SyncBatchNorm(3), (4, 3, 5)),
    ],
)
def test_running_statistics(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    check(filled(make()).eval(), normal(*shape), n=4, again=(normal(*shape, seed=1),))


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (8, 3)),
        (nn.BatchNorm1d, (4, 3, 5)),
        (nn.BatchNorm2d, (4, 3, 2, 5)),
        (nn.BatchNorm3d, (4, 3, 2, 2, 2)),
    ],
)
def test_batch_statistics_give_row_contributions(
    kind: type[nn.Module], shape: tuple[int, ...], tracked: bool
) -> None:
    module = filled(kind(3, track_running_stats=tracked))
    module.train(tracked)
    x = normal(*shape)
    losses, (call,) = trace(module, [((x,), {})], 4)
    axes = (0, *range(2, x.ndim))
    mean, var = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    xhat, dy = (x - mean) / (var + module.eps).sqrt(), call.grads[0]
    assert dy is not None
    images = [(t.reshape(4, -1, 3, t[0, 0].numel())) for t in (xhat, dy)]
    found = gradients_of([call])
    compare(found["weight"], (images[0] * images[1]).sum((1, 3)))
    compare(found["bias"], images[1].sum((1, 3)))
    for name, p in module.named_parameters():
        (whole,) = torch.autograd.grad(losses.sum(), p, retain_graph=True)
        torch.testing.assert_close(found[name].total(), whole, rtol=1e-9, atol=1e-11)


def test_scale_and_shift_act_after_the_rows_were_mixed() -> None:
    module = filled(nn.BatchNorm1d(3))
    losses, calls = trace(module, [((normal(4, 3),), {})], 4)
    # the two definitions part below a BatchNorm only; for its own parameters they are one
    expected, found = by_autograd(module, losses), gradients_of(calls)
    torch.testing.assert_close(found["weight"].dense(0, 4), expected["weight"], rtol=1e-9, atol=1e-11)


def test_half_precision_is_summed_in_single() -> None:
    for module in (nn.LayerNorm(64), nn.RMSNorm(64), nn.GroupNorm(4, 64)):
        module = module.to(torch.bfloat16)
        x = 1e-3 * normal(4, 64).to(torch.bfloat16)
        f = formula_for(module)
        assert f is not None
        _, (call,) = trace(module, [((x,), {})], 4)
        part = f.parts(call)["weight"]
        assert part.dense(0, 4).dtype == torch.float32
        dy = call.grads[0]
        assert dy is not None
        with torch.no_grad():
            module.weight.fill_(1)
            if getattr(module, "bias", None) is not None:
                module.bias.fill_(0)
            xhat = wide(module(x))
        torch.testing.assert_close(part.dense(0, 4), xhat * wide(dy), rtol=2e-2, atol=1e-2)


def test_statistics_over_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.SyncBatchNorm(3)
    f = formula_for(module)
    assert f is not None
    assert f.refuses(module, (), {}) is None
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    assert "several processes" in (f.refuses(module, (), {}) or "")
    assert f.refuses(module.eval(), (), {}) is None
