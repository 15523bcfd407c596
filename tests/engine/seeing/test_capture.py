"""Hooks that see layers and gradients, own nothing, and are not carried away by copies."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit.engine.layers.formula import FORMULAS, Formula
from cockpit.engine.seeing.capture import Capture
from cockpit.engine.seeing.use import Use, signature
from layer_check import filled, normal

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def net(*layers: nn.Module) -> nn.Sequential:
    """Two linear layers with something between."""
    model = filled(nn.Sequential(nn.Linear(3, 4), *(layers or (nn.Tanh(),)), nn.Linear(4, 2)))
    assert isinstance(model, nn.Sequential)
    return model


def armed(model: nn.Module) -> Capture:
    capture = Capture(model)
    capture.arm()
    return capture


class Seen(dict[str, tuple[Tensor | None, ...]]):
    """Receives output gradients by layer name."""

    def __call__(self, use: Use, grads: tuple[Tensor | None, ...]) -> None:
        self[use.name] = grads


def test_hooks_are_there_only_while_armed() -> None:
    model = net()
    capture = Capture(model)
    assert not capture.armed
    capture.arm()
    capture.arm()
    assert [len(m._forward_hooks) for m in model.modules()] == [1, 1, 0, 1]
    capture.disarm()
    assert not capture.armed
    assert not any(getattr(m, kind) for m in model.modules() for kind in HOOKS)


def test_frozen_layers_and_layers_without_formula_are_left_alone() -> None:
    model = net()
    model[0].requires_grad_(False)
    capture = armed(model)
    model(normal(2, 3)).sum()
    assert [len(m._forward_hooks) for m in model.modules()] == [1, 0, 0, 1]
    capture.disarm()


def test_uses_die_with_their_graph() -> None:
    model = net()
    capture = armed(model)
    first, second = model(normal(2, 3)), model(normal(2, 3))
    assert [use.name for use in capture.uses()] == ["0", "2", "0", "2"]
    del first
    assert [use.name for use in capture.uses()] == ["0", "2"]
    del second
    assert capture.uses() == []


def test_calls_of_one_layer_are_numbered_by_shape_class() -> None:
    model = net()
    capture = armed(model)
    kept = [model(normal(2, 3)), model(normal(2, 5, 3)), model(normal(4, 3))]
    numbers = [(use.name, len(use.shapes[0]), k) for use, k in capture.numbered()]
    assert numbers == [("0", 2, 0), ("2", 2, 0), ("0", 3, 0), ("2", 3, 0), ("0", 2, 1), ("2", 2, 1)]
    del kept


def test_signature_tells_modes_and_layers_apart_but_not_batch_sizes() -> None:
    model = net()
    capture = armed(model)
    signatures = []
    for x, training in ((normal(2, 3), True), (normal(5, 3), True), (normal(2, 3), False)):
        model.train(training)
        output = model(x)
        signatures.append(signature(capture.uses()))
        del output
        capture.forget()
    assert signatures[0] == signatures[1] != signatures[2]


def test_gradients_go_to_the_receiver_and_to_nobody_else() -> None:
    model, x = net(), normal(2, 3)
    capture = armed(model)
    loss = model(x).square().sum()
    seen, other = Seen(), Seen()
    torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    with capture.receive(seen):
        with capture.receive(None):
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        assert not seen
        with capture.receive(other):
            loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    loss.backward()
    assert set(seen) == set(other) == {"0", "2"}
    (top,) = seen["2"]
    torch.testing.assert_close(top, 2 * model(x))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.LeakyReLU])
def test_in_place_operations_behind_a_layer(activation: type[nn.Module]) -> None:
    """The gradient is that of the layer's own output, not of what it was overwritten with."""
    found = []
    for one in (net(activation()), net(activation(inplace=True))):
        capture, seen = armed(one), Seen()
        with capture.receive(seen):
            one(normal(5, 3)).square().sum().backward()
        found.append(seen["0"][0])
    torch.testing.assert_close(found[1], found[0])


def test_overwritten_inputs_are_noticed() -> None:
    model, x = net(), normal(2, 3)
    capture = armed(model)
    y = model(x)
    first, second = capture.uses()
    assert first.intact()
    assert second.intact()
    x.add_(1)
    assert not first.intact()
    assert second.intact()
    del y


@pytest.mark.parametrize("used", ["sequence", "state", "both"])
def test_layers_with_several_outputs(used: str) -> None:
    """Each output has its gradient; None where none came."""
    model = nn.GRU(3, 4, batch_first=True).double()
    capture, seen = armed(model), Seen()
    sequence, state = model(normal(2, 5, 3))
    loss = (sequence.sum() if used != "state" else 0) + (2 * state.sum() if used != "sequence" else 0)
    with capture.receive(seen):
        loss.backward()
    first, second = seen[""]
    assert (first is None) == (used == "state")
    assert (second is None) == (used == "sequence")
    assert second is None or bool((second == 2).all())


def test_evaluation_passes_leave_no_trace() -> None:
    model = net()
    capture = armed(model)
    capture.keep_outputs = True
    with torch.no_grad():
        model(normal(2, 3))
    with torch.inference_mode():
        model(normal(2, 3))
    assert capture.uses() == []
    assert capture.outputs == []
    assert capture.examples == 0


def test_outputs_and_examples_of_the_model() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 2)

        def forward(self, *, x: Tensor) -> dict[str, Any]:
            y = self.body(x)
            return {"y": y, "more": [y.sum(), y.detach()], "index": y.argmax(1), "note": "text"}

    model = Heads().double()
    capture = armed(model)
    told: list[tuple[int, int]] = []
    capture.on_outputs = lambda outputs, n: told.append((len(outputs), n))
    result = model(x=normal(7, 3))
    assert told == [(2, 7)]
    assert capture.outputs == []
    capture.keep_outputs = True
    for _ in range(6):
        result = model(x=normal(7, 3))
    assert len(capture.outputs) == 8, "only the newest calls are kept"
    assert capture.outputs[-2] is result["y"]
    capture.forget()
    assert capture.outputs == []


def test_gradients_that_come_before_a_receiver() -> None:
    model = net()
    capture = armed(model)
    loss = model(normal(2, 3)).sum()
    capture.expect()
    loss.backward(retain_graph=True)
    early = capture.early()
    assert [use.name for use, _ in early] == ["2", "0"]
    loss.backward()
    assert capture.early() == []


def test_random_states_are_recorded_for_layers_that_are_run_again() -> None:
    attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    capture = armed(attention)
    state = torch.get_rng_state()
    y, _ = attention(*[torch.ones(2, 3, 4)] * 3)
    (use,) = capture.uses()
    assert use.replay is not None
    assert torch.equal(use.replay.cpu, state)
    del y
    linear = net()
    other = armed(linear)
    z = linear(normal(2, 3))
    assert [use.replay for use in other.uses()] == [None, None]
    del z


class Watched(nn.Module):
    """A module of our own, for a formula of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_failures_of_ours_stay_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("a formula's fault")

    formula = Formula(lambda call: {}, lambda m, o, n: [], broken, lambda m: False)
    monkeypatch.setitem(FORMULAS, Watched, formula)
    model = Watched()
    capture = armed(model)
    model(torch.ones(2, 3)).sum().backward()
    assert isinstance(capture.failure, ZeroDivisionError)
    assert model.weight.grad is not None

    other = net()
    capture = armed(other)

    def fail(*_: Any) -> None:
        raise KeyError("a receiver's fault")

    with capture.receive(fail):
        other(normal(2, 3)).sum().backward()
    assert isinstance(capture.failure, KeyError)
    assert other[0].weight.grad is not None
    capture.forget()
    assert capture.failure is None


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies_of_a_watched_model_know_nothing_of_us(way: str) -> None:
    model, x = nn.Sequential(net(), nn.MultiheadAttention(2, 1)).double(), normal(2, 3)
    capture = armed(model)
    if way == "deepcopy":
        twin = copy.deepcopy(model)
    elif way == "pickle":
        data = pickle.dumps(model)
        assert b"cockpit" not in data
        twin = pickle.loads(data)
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        assert b"cockpit" not in buffer.getvalue()
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    seen = Seen()
    with capture.receive(seen):
        y = twin[0](x)
        y.sum().backward()
        twin[1](y, y, y)
    assert not seen
    assert capture.uses() == []
    assert torch.equal(y, model[0](x))
    assert not any(isinstance(h, Capture) for m in twin.modules() for h in vars(m).values())
    again = copy.deepcopy(twin)
    assert torch.equal(again[0](x), y)


class Sums:
    """Observes the sum of the weights, twice, or nothing."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def wants(self, module: nn.Module) -> bool:
        return True

    def forget(self, module: nn.Module) -> None:
        self.forgotten = module

    def before(self, module: nn.Module) -> Tensor:
        return next(module.parameters()).detach().sum()

    def after(self, module: nn.Module, before: Tensor | None, outputs: list[Tensor]) -> list[Tensor] | str:
        assert before is not None
        if self.refuses == "fails":
            raise ValueError("in here")
        return self.refuses or [2 * before]


@pytest.mark.parametrize("refuses", ["", "not today", "fails"])
def test_what_an_observer_sees_belongs_to_the_call(refuses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums(refuses)
    monkeypatch.setitem(FORMULAS, nn.Linear, replace(FORMULAS[nn.Linear], observer=sums))
    model = nn.Linear(3, 2)
    capture = Capture(model)
    capture.arm()
    output = model(torch.ones(4, 3))
    (use,) = capture.uses()
    capture.disarm()
    assert output.requires_grad
    why = "what it keeps inside was not seen: ValueError: in here" if refuses == "fails" else refuses
    assert use.refused == (why or None)
    assert capture.failure is None
    if not refuses:
        (seen,) = use.call((), 4, ()).observed
        assert float(seen) == 2 * float(model.weight.detach().sum())
        assert use.inputs[1] is seen
        places = [torch.zeros(4, 3), torch.zeros(())]
        call = use.at(places).call((), 4, ())
        assert call.observed[0] is places[1]
        assert call.input is places[0]
    use.release()
    assert use.inputs == []
    capture.close()
    assert sums.forgotten is model
