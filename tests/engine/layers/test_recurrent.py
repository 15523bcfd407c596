from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from cockpit.engine import gradients
from cockpit.engine.layers.formula import formula_for
from layer_check import check, filled, gradients_of, normal, trace

N, T, D, H = 3, 4, 5, 2
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "lstm, projected": (nn.LSTM, {"proj_size": 1}),
    "gru": (nn.GRU, {}),
}


def layer(which: str, **options: Any) -> nn.Module:
    kind, more = KINDS[which]
    return filled(kind(D, H, **more, **options))


def initial(module: nn.Module, n: int = N) -> Any:
    rows = module.num_layers * (2 if module.bidirectional else 1)
    h = normal(rows, n, module.proj_size or H, seed=3)
    return (h, normal(rows, n, H, seed=4)) if isinstance(module, nn.LSTM) else h


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("which", KINDS)
def test_one_layer(which: str, bias: bool) -> None:
    module = layer(which, bias=bias)
    check(module, normal(T, N, D), n=N)
    check(module, normal(1, N, D), initial(module), n=N)
    check(module, normal(T, N, D), initial(module), n=N, again=(normal(T + 1, N, D, seed=1),), keep=[2, 0])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", KINDS)
def test_layers_and_directions(which: str, first: bool) -> None:
    x = normal(N, T, D) if first else normal(T, N, D)
    for options in ({"num_layers": 2}, {"bidirectional": True}, {"num_layers": 3, "bidirectional": True}):
        module = layer(which, batch_first=first, **options)
        check(module, x, n=N)
        check(module, x, hx=initial(module), n=N)


@pytest.mark.parametrize(
    ("which", "only"), [("tanh", 0), ("tanh", 1), ("lstm", 1), ("lstm", 2), ("lstm, projected", 2)]
)
def test_gradients_of_one_output_only(which: str, only: int) -> None:
    module = layer(which, num_layers=2, bidirectional=True)
    check(module, normal(T, N, D), n=N, used=lambda outputs: (outputs[only],))


def test_dropout_before_the_last_layer_matters_in_training_only() -> None:
    module = layer("gru", num_layers=2, dropout=0.5)
    f = formula_for(module)
    assert f is not None
    assert "dropout" in (f.refuses(module, (normal(T, N, D),), {}) or "")
    check(module.eval(), normal(T, N, D), n=N)


@pytest.mark.parametrize("which", ["tanh", "lstm", "gru"])
def test_what_is_refused(which: str) -> None:
    module = layer(which)
    f = formula_for(module)
    assert f is not None
    assert "batch axis" in (f.refuses(module, (normal(T, D),), {}) or "")
    assert "packed" in (f.refuses(module, (pack_sequence([normal(T, D), normal(2, D)]),), {}) or "")
    assert f.candidates(module, (normal(T, N, H),), T) == []


def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", 40)
    check(layer("lstm"), normal(T, N, D), n=N, again=(normal(T, N, D, seed=1),))


CELLS = {
    "tanh": lambda **k: nn.RNNCell(D, H, **k),
    "relu": lambda **k: nn.RNNCell(D, H, nonlinearity="relu", **k),
    "lstm": lambda **k: nn.LSTMCell(D, H, **k),
    "gru": lambda **k: nn.GRUCell(D, H, **k),
}


def cell_state(which: str, *rows: int) -> Any:
    h = normal(*rows, H, seed=3)
    return (h, normal(*rows, H, seed=4)) if which == "lstm" else h


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("which", CELLS)
def test_cells(which: str, bias: bool) -> None:
    module = filled(CELLS[which](bias=bias))
    check(module, normal(N, D), cell_state(which, N), n=N)
    check(
        module,
        normal(N, D),
        cell_state(which, N),
        n=N,
        again=(normal(N, D, seed=1), cell_state(which, N)),
        keep=[1],
    )


@pytest.mark.parametrize("which", CELLS)
def test_cells_of_a_folded_batch_and_without_batch(which: str) -> None:
    module = filled(CELLS[which]())
    for pick in (0, 1):
        check(module, normal(2 * N, D), cell_state(which, 2 * N), n=N, pick=pick)
    check(module, normal(D), cell_state(which), n=1)


@pytest.mark.parametrize("which", CELLS)
def test_cells_start_from_zero(which: str) -> None:
    module = filled(CELLS[which]())
    module.weight_hh.requires_grad_(False)
    check(module, normal(N, D), n=N)


@pytest.mark.parametrize("which", CELLS)
def test_a_cell_called_for_every_step_is_the_layer(which: str) -> None:
    module = filled(CELLS[which]())
    xs = normal(T, N, D)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    state = cell_state(which, N)
    with torch.no_grad():
        for x in xs:
            calls.append(((x, state), {}))
            state = module(x, state)
    losses, recorded = trace(module, calls, N)
    found = gradients_of(recorded)
    for name, p in module.named_parameters():
        (whole,) = torch.autograd.grad(losses.sum(), p, retain_graph=True)
        torch.testing.assert_close(found[name].total(), whole, rtol=1e-9, atol=1e-11)
        assert len(found[name].parts) == T


@pytest.mark.parametrize("which", ["tanh", "lstm", "gru"])
def test_half_precision_is_run_again_in_single(which: str) -> None:
    module = layer(which)
    x = normal(T, N, D)
    _, (call,) = trace(module, [((x,), {})], N)
    wanted = gradients_of([call])["weight_hh_l0"].dense(0, N)

    def narrow(g: Tensor | None) -> Tensor | None:
        return None if g is None else g.bfloat16()

    module = module.bfloat16()
    low = type(call)(module, (x.bfloat16(),), {}, tuple(narrow(g) for g in call.grads), N, call.layouts)
    got = gradients_of([low])["weight_hh_l0"].dense(0, N)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), wanted, rtol=5e-2, atol=5e-2)
