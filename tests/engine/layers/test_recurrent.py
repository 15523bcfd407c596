from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from cockpit import Cockpit
from cockpit.engine.gradients import individual
from cockpit.engine.gradients.parts import Part
from cockpit.engine.layers.formula import FORMULAS, Call, Replay, formula_for
from cockpit.testing import problems
from layer_check import by_autograd, check, filled, gradients_of, normal, trace
from reference.twins import train
from watched import SCALARS, differences, watch

N, T, D, H = 3, 4, 5, 2
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "lstm, projected": (nn.LSTM, {"proj_size": 1}),
    "gru": (nn.GRU, {}),
}


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield


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


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("which", KINDS)
def test_dropout_draws_the_same_masks_again(which: str, first: bool) -> None:
    x = normal(N, T, D) if first else normal(T, N, D)
    for options in ({"num_layers": 2}, {"num_layers": 3, "bidirectional": True}):
        module = layer(which, batch_first=first, dropout=0.4, **options)
        check(module, x, n=N)
        check(module, x, initial(module), n=N, again=(normal(*x.shape, seed=1),), keep=[2, 0])
    check(layer(which, num_layers=2, dropout=0.4).eval(), normal(T, N, D), n=N)


def test_everything_dropped() -> None:
    module = layer("lstm", num_layers=2, dropout=1.0)
    losses, calls = trace(module, [((normal(T, N, D),), {})], N)
    expected = by_autograd(module, losses)
    for name, found in gradients_of(calls).items():
        torch.testing.assert_close(found.dense(0, N), expected[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("which", KINDS)
def test_running_again_leaves_the_random_state_alone(which: str) -> None:
    _, calls = trace(layer(which, num_layers=2, dropout=0.4), [((normal(T, N, D),), {})], N)
    before = torch.get_rng_state()
    gradients_of(calls)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_without_a_random_state_is_an_error() -> None:
    module = layer("gru", num_layers=2, dropout=0.4)
    _, (call,) = trace(module, [((normal(T, N, D),), {})], N)
    with pytest.raises(RuntimeError, match="random state"):
        gradients_of([replace(call, replay=None)])


def test_masks_of_another_device_are_hidden() -> None:
    module = layer("lstm", num_layers=2, dropout=0.4).to("meta")
    f, x = formula_for(module), torch.empty(T, N, D, device="meta")
    assert f is not None
    assert "hidden" in (f.refuses(module, (x,), {}) or "")
    assert not f.replays(module)
    assert f.refuses(module.eval(), (x,), {}) is None


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


@pytest.mark.parametrize("drawn", ["the same masks", "other masks"])
def test_masks_that_are_not_those_of_the_layer_are_noticed(
    drawn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if drawn == "other masks":
        monkeypatch.setattr(Replay, "__call__", lambda self: torch.random.fork_rng([]))
    problem = next(p for p in problems() if p.name == "characters")
    twin = train(problem, sgd, [[4], [4]], "mean")
    run, cockpit, _ = watch(problem, sgd, [[4], [4]], tmp_path, SCALARS, "mean")
    assert differences(run, twin, SCALARS) == []
    ways = {way for name, (way, _) in cockpit.coverage.items() if name.startswith("lstm")}
    assert ways == {"formula"} if drawn == "the same masks" else ways <= {"vmap", "loop"}


@pytest.mark.parametrize("which", ["tanh", "lstm", "gru"])
def test_what_is_refused(which: str) -> None:
    module = layer(which)
    f = formula_for(module)
    assert f is not None
    assert "batch axis" in (f.refuses(module, (normal(T, D),), {}) or "")
    assert "packed" in (f.refuses(module, (pack_sequence([normal(T, D), normal(2, D)]),), {}) or "")
    assert f.candidates(module, (normal(T, N, H),), T) == []


def test_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(individual, "BLOCK", 40)
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


class Saved:
    """A tensor that autograd keeps for a layer, and that tells when it is let go."""

    def __init__(self, tensor: Tensor, told: list[str]) -> None:
        self.tensor, self._told = tensor, told

    def __del__(self) -> None:
        self._told.append("let go")


def test_it_is_run_again_when_autograd_has_let_go_what_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would need room at the same time, each as much as the rest of a step."""
    told: list[str] = []
    known = FORMULAS[nn.LSTM]

    def parts(call: Call) -> dict[str, Part]:
        told.append("run again")
        return known.parts(call)

    monkeypatch.setitem(FORMULAS, nn.LSTM, replace(known, parts=parts))
    embedding, lstm = nn.Embedding(7, D), nn.LSTM(D, H, batch_first=True)
    optimizer = torch.optim.SGD(chain(embedding.parameters(), lstm.parameters()), lr=0.1)
    model = nn.ModuleList([embedding, lstm])
    with Cockpit(model, optimizer, quantities=["norm_test"], run=tmp_path) as cockpit:
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(t, told), lambda s: s.tensor):
                y, _ = lstm(embedding(torch.arange(N * T).reshape(N, T) % 7))
            told.clear()
            cockpit.backward(y.square().mean((1, 2)))
            optimizer.step()
    assert told[0] == "let go"
    assert told.count("run again") == 1
