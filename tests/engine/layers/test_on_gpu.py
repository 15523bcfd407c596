"""What differs on a GPU: fused kernels, their dropout masks, their rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.gradients import parts
from cockpit.engine.layers import cudnn
from cockpit.engine.layers.recurrent import MASK
from layer_check import by_autograd, check, filled, gradients_of, normal, trace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def there(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).cuda()


def module_of(module: nn.Module) -> nn.Module:
    return filled(module).cuda()


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_fused_recurrent_layers(kind: type[nn.Module], options: dict[str, Any]) -> None:
    check(module_of(kind(5, 2, **options)), there(4, 3, 5), n=3)


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}])
@pytest.mark.parametrize(
    ("kind", "more"), [(nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {}), (nn.GRU, {})]
)
def test_the_mask_between_two_layers_is_found(
    kind: type[nn.Module], more: dict[str, Any], options: dict[str, Any]
) -> None:
    module = module_of(kind(5, 6, num_layers=2, dropout=0.5, **more, **options))
    x = there(3, 7, 5) if options.get("batch_first") else there(7, 3, 5)
    assert MASK.after(module, MASK.before(module), [module(x)[0]]) is not None  # from now on states are known
    check(module, x, n=3)
    check(module, x, n=3, again=(there(*x.shape, seed=1),))


def test_finding_the_mask_leaves_the_training_alone() -> None:
    module = nn.LSTM(16, 32, num_layers=2, dropout=0.5).cuda()
    inputs = [there(9, 4, 16, seed=k).float() for k in range(3)]
    MASK.after(module, None, [module(inputs[0])[0]])
    (states,) = cudnn._STATES.values()
    begin, found = states.clone(), []
    for watched in (False, True):
        states.copy_(begin)
        outputs = []
        for x in inputs:
            before = MASK.before(module) if watched else None
            outputs.append(module(x)[0])
            if watched:
                (mask,) = MASK.after(module, before, [outputs[-1]])
                assert mask.unique().tolist() == [0.0, 2.0]
        found.append(torch.stack(outputs))
    assert torch.equal(*found)


def test_projected_lstm() -> None:
    check(module_of(nn.LSTM(5, 4, proj_size=2)), there(4, 3, 5), n=3)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_fused_cells(kind: type[nn.Module]) -> None:
    state: Any = there(3, 2, seed=1)
    state = (state, there(3, 2, seed=2)) if kind is nn.LSTMCell else state
    check(module_of(kind(5, 2)), there(3, 5), state, n=3)


@pytest.mark.parametrize("module", ["conv", "transposed", "batch norm", "embedding", "linear"])
def test_other_layers(module: str) -> None:
    if module == "conv":
        check(module_of(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)), there(3, 4, 7, 6), n=3)
    elif module == "transposed":
        check(module_of(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2)), there(3, 4, 5, 4), n=3)
    elif module == "batch norm":
        check(module_of(nn.BatchNorm2d(4)).eval(), there(3, 4, 5, 4), n=3)
    elif module == "embedding":
        ids = torch.tensor([[0, 1, 1], [2, 2, 2], [4, 0, 1]]).cuda()
        check(module_of(nn.Embedding(5, 3)), ids, n=3)
    else:
        check(module_of(nn.Linear(5, 4)), there(3, 2, 5), n=3)


@pytest.mark.parametrize("weights", [True, False])
def test_attention_draws_the_same_mask_again(weights: bool) -> None:
    module = module_of(nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.4))
    x, y = there(3, 4, 8), there(3, 5, 8, seed=1)
    check(module, x, x, x, n=3, need_weights=weights)
    check(module, x, y, y, n=3, need_weights=weights)


@pytest.mark.parametrize("autocast", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_draws_the_same_mask_in_every_precision(
    dtype: torch.dtype, weights: bool, autocast: torch.dtype | None
) -> None:
    # flash and memory-efficient kernels draw their masks in layouts of their own
    module = module_of(nn.MultiheadAttention(64, 4, batch_first=True, dropout=0.5)).to(dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.2)  # keeps autograd's own gradients within float16
    x = there(3, 33, 64).to(dtype)
    with torch.autocast("cuda", dtype=autocast or torch.float16, enabled=autocast is not None):
        losses, calls = trace(module, [((x, x, x), {"need_weights": weights})], 3)
    wanted, found = by_autograd(module, losses), gradients_of(calls)
    for name in ("in_proj_weight", "out_proj.weight"):
        got, want = found[name].dense(0, 3), wanted[name].float()
        off = float((got - want).norm() / want.norm())
        assert off < (0.15 if torch.bfloat16 in (dtype, autocast) else 0.02), name  # another mask: about 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_waiting_for_the_device() -> None:
    embedding, linear = module_of(nn.Embedding(5, 3)), module_of(nn.Linear(3, 4))
    ids = torch.tensor([[0, 1, 1], [2, 2, 2], [4, 0, 1]]).cuda()
    _, calls = trace(embedding, [((ids,), {})], 3)
    _, more = trace(linear, [((there(3, 2, 3),), {})], 3)
    found = [*gradients_of(calls).values(), *gradients_of(more).values()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for g in found:
            for value in (g.norm2(), g.total(), g.square_sum(), g.dot(g.parameter)):
                assert value.is_cuda
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_products_whose_rows_are_copied_to_aligned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (there(1, 1, 5, size, seed=size).bfloat16() for size in (16, 11))
    expected = torch.einsum("ngto,ngti->noi", b.double(), a.double())
    monkeypatch.setattr(parts, "WORTH", 1)
    found = parts.Outer(a, b, torch.Size([11, 16])).dense(0, 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
