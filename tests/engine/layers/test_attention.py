from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.gradients import individual
from cockpit.engine.layers.formula import formula_for
from layer_check import check, filled, gradients_of, normal, trace

N, T, S, E = 3, 4, 5, 6


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield


def tokens(length: int, width: int = E, first: bool = True, seed: int = 0) -> Tensor:
    x = normal(N, length, width, seed=seed)
    return x if first else x.transpose(0, 1)


def layer(**options: Any) -> nn.Module:
    return filled(nn.MultiheadAttention(E, 2, **options))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention(first: bool, bias: bool, weights: bool) -> None:
    module, x = layer(batch_first=first, bias=bias), tokens(T, first=first)
    check(module, x, x, x, n=N, need_weights=weights)
    check(module.eval(), x, x, x, n=N, need_weights=weights, keep=[2, 0])


@pytest.mark.parametrize("source", [3, 4, 5])
@pytest.mark.parametrize("first", [True, False])
def test_cross_attention(first: bool, source: int) -> None:
    module = layer(batch_first=first)
    q, k, v = tokens(T, first=first), tokens(source, first=first, seed=1), tokens(source, first=first, seed=2)
    check(module, q, k, k, n=N)
    check(module, q, k, v, n=N, need_weights=False)
    check(module, query=q, key=k, value=v, n=N, average_attn_weights=False)


def test_keys_and_values_of_other_widths() -> None:
    module = layer(batch_first=True, kdim=3, vdim=5)
    check(module, tokens(T), tokens(S, 3), tokens(S, 5), n=N)


def test_self_then_cross_attention_in_one_layer() -> None:
    module, x, y = layer(batch_first=True), tokens(T), tokens(S, seed=1)
    check(module, x, x, x, again=(x, y, y), n=N)


def padding(kind: torch.dtype) -> Tensor:
    mask = torch.zeros(N, T, dtype=torch.bool)
    mask[0, 2:] = mask[2, 3:] = True
    return mask if kind == torch.bool else torch.zeros(N, T, dtype=kind).masked_fill(mask, -torch.inf)


def causal(kind: torch.dtype) -> Tensor:
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    return mask if kind == torch.bool else torch.zeros(T, T, dtype=kind).masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_masks(kind: torch.dtype, weights: bool) -> None:
    module, x = layer(batch_first=True), tokens(T)
    options = {"need_weights": weights, "n": N}
    check(module, x, x, x, key_padding_mask=padding(kind), **options)
    check(module, x, x, x, attn_mask=causal(kind), **options)
    check(module, x, x, x, attn_mask=causal(kind), is_causal=True, **options)
    check(module, x, x, x, attn_mask=causal(kind), key_padding_mask=padding(kind), is_causal=True, **options)
    check(module, x, x, x, attn_mask=normal(2 * N, T, T, seed=4), **options)
    check(module, x, x, x, padding(kind), weights, causal(kind), n=N)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_dropout_draws_the_same_mask_again(first: bool, weights: bool) -> None:
    module, x = layer(batch_first=first, dropout=0.4), tokens(T, first=first)
    y = tokens(S, first=first, seed=1)
    check(module, x, y, y, n=N, need_weights=weights)
    check(module, x, x, x, again=(x, y, y), n=N, need_weights=weights)


def test_running_again_leaves_the_random_state_alone() -> None:
    module, x = layer(batch_first=True, dropout=0.4), tokens(T)
    _, calls = trace(module, [((x, x, x), {})], N)
    before = torch.get_rng_state()
    gradients_of(calls)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_without_a_random_state_is_an_error() -> None:
    module, x = layer(batch_first=True, dropout=0.4), tokens(T)
    _, (call,) = trace(module, [((x, x, x), {})], N)
    blind = type(call)(module, call.args, call.kwargs, call.grads, N, call.layouts)
    with pytest.raises(RuntimeError, match="random state"):
        gradients_of([blind])


@pytest.mark.parametrize("only", [0, 1])
def test_gradients_of_one_output_only(only: int) -> None:
    module, x = layer(batch_first=True, bias=False), tokens(T)
    if only == 1:
        module.out_proj.weight.requires_grad_(False)
    check(module, x, x, x, n=N, used=lambda outputs: (outputs[only],))


def test_a_frozen_in_projection() -> None:
    module, x = layer(batch_first=True), tokens(T)
    module.in_proj_weight.requires_grad_(False)
    module.in_proj_bias.requires_grad_(False)
    check(module, x, x, x, n=N)


def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(individual, "BLOCK", 150)
    module, x, y = layer(batch_first=True), tokens(T), tokens(S, seed=1)
    check(module, x, x, x, n=N)
    check(module, x, y, y, n=N, again=(y, x, x))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_half_precision(dropout: float, size: float) -> None:
    module = filled(nn.MultiheadAttention(E, 2, batch_first=True, dropout=dropout)).half()
    x = tokens(T).half()
    _, (call,) = trace(module, [((x, x, x), {})], N)
    dy = call.grads[0]
    assert dy is not None
    found = {}
    for factor in (1.0, size):
        tiny = type(call)(
            module,
            call.args,
            {"need_weights": True},
            (dy.float() * factor,),
            N,
            call.layouts,
            None,
            call.replay,
        )
        found[factor] = gradients_of([tiny])["in_proj_weight"].dense(0, N)
    assert found[size].dtype == torch.float32
    torch.testing.assert_close(found[size] / size, found[1.0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "shape", "reason"),
    [
        ({"add_bias_kv": True}, (T, N, E), "bias_k"),
        ({"add_zero_attn": True}, (T, N, E), "add_zero_attn"),
        ({}, (T, E), "batch axis"),
    ],
)
def test_what_is_refused(options: dict[str, Any], shape: tuple[int, ...], reason: str) -> None:
    module, x = layer(**options), normal(*shape)
    f = formula_for(module)
    assert f is not None
    assert reason in (f.refuses(module, (x, x, x), {}) or "")


def test_another_batch_size_has_no_layout() -> None:
    module, x = layer(batch_first=True), tokens(T)
    f = formula_for(module)
    assert f is not None
    assert f.candidates(module, (x,), T) == []
    assert len(f.candidates(module, (x,), N)) == 1
