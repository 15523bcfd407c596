"""Steps read from the state of optimisers are those that parameters have taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from cockpit import Cockpit
from cockpit.session.moves import Coming, foreseeable, readable, taken
from session.loops import FIRST_ORDER, batch, differences, losses_of, net, records

Make = Callable[[Any], Optimizer]
READ: dict[str, Make] = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "everything of SGD": lambda p: SGD(p, 0.1, 0.9, dampening=0.3, weight_decay=0.02, maximize=True),
    "Adam": lambda p: Adam(p, lr=0.01),
    "everything of Adam": lambda p: Adam(
        p, 0.01, (0.7, 0.9), 1e-3, weight_decay=0.1, amsgrad=True, maximize=True
    ),
    "AdamW": lambda p: AdamW(p, lr=0.01, weight_decay=0.3),
    "a foreach loop": lambda p: AdamW(p, lr=0.01, foreach=True),
    "a fused loop": lambda p: Adam(p, lr=0.01, fused=True),
    "a rate as a tensor": lambda p: Adam(p, lr=torch.tensor(0.01, dtype=torch.float64)),
}
COMPARED: dict[str, Make] = {
    "Nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain": lambda p: SGD(p, lr=0.1),
    "some groups": lambda p: SGD([{"params": [q], "momentum": 0.5 * k} for k, q in enumerate(p)], lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def stepped(model: nn.Module, opt: Optimizer, t: int) -> dict[str, Tensor]:
    """Take a step and return it."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    opt.zero_grad()
    losses_of(model, *batch(t)).mean().backward()
    opt.step()
    return {n: p.detach() - before[n] for n, p in model.named_parameters()}


@pytest.mark.parametrize("make", READ.values(), ids=READ)
def test_the_state_tells_the_step(make: Make) -> None:
    model = net()
    opt = make(list(model.parameters()))
    names = {id(p): n for n, p in model.named_parameters()}
    assert readable(opt)
    for t in range(3):
        expected = stepped(model, opt, t)
        found = taken(opt, names, [float(g["lr"]) for g in opt.param_groups])
        assert found is not None
        for name, (vector, factor) in found.items():
            torch.testing.assert_close(vector * factor, expected[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("make", COMPARED.values(), ids=COMPARED)
def test_other_optimisers_are_not_read(make: Make) -> None:
    assert not readable(make(list(net().parameters())))


def test_somebody_else_may_move_parameters_after_the_step() -> None:
    opt = READ["Adam"](list(net().parameters()))
    opt.register_step_post_hook(lambda *_: None)
    assert readable(opt)
    opt.register_step_post_hook(lambda *_: None)
    assert not readable(opt)


def test_what_has_no_gradient_does_not_move() -> None:
    model = net()
    opt = READ["momentum"](list(model.parameters()))
    stepped(model, opt, 0)
    opt.zero_grad()
    first, *others = model.named_parameters()
    for _, p in others:
        p.grad = torch.ones_like(p)
    opt.step()
    found = taken(opt, {id(p): n for n, p in model.named_parameters()}, [0.1])
    assert found is not None
    assert found[first[0]][1] == 0
    assert found[first[0]][0].shape == first[1].shape


@pytest.mark.parametrize("why", ["half precision", "not one of its parameters", "a scaler", "no step yet"])
def test_the_state_does_not_tell(why: str) -> None:
    model = net()
    opt = READ["Adam"](list(model.parameters()))
    names = {id(p): n for n, p in model.named_parameters()}
    if why == "no step yet":
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    else:
        stepped(model, opt, 0)
    if why == "half precision":
        model.to(torch.bfloat16)
    elif why == "not one of its parameters":
        names[id(why)] = "another"
    elif why == "a scaler":
        opt.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    assert taken(opt, names, [0.01]) is None


FORESEEN = READ | {name: COMPARED[name] for name in ("Nesterov", "plain", "some groups")}


@pytest.mark.parametrize("make", FORESEEN.values(), ids=FORESEEN)
@pytest.mark.parametrize("block", [7, 2**16])
def test_the_state_tells_the_coming_step(make: Make, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.session.moves.BLOCK", block)
    model = net()
    opt = make(list(model.parameters()))
    coming = Coming(opt)
    assert foreseeable(opt)
    for t in range(4):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        opt.zero_grad()
        losses_of(model, *batch(t)).mean().backward()
        if t == 2:
            next(model.parameters()).grad = None
        found = {n: coming.tell(p) for n, p in model.named_parameters()}
        opt.step()
        for name, p in model.named_parameters():
            step = found[name]
            assert step is not None
            torch.testing.assert_close(step, p.detach() - before[name], rtol=1e-9, atol=1e-14)


unit = st.floats(0, 0.99)


@given(
    adam=st.booleans(),
    lr=st.floats(1e-4, 1),
    decay=st.floats(0, 0.5),
    one=unit,
    other=unit,
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_the_coming_step_at_any_settings(
    adam: bool, lr: float, decay: float, one: float, other: float, flags: tuple[bool, ...], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = torch.randn(7, generator=draw, dtype=torch.float64).requires_grad_()
    first, second, third = flags
    opt: Optimizer
    if adam:
        opt = Adam([p], lr, (one, other), 1e-6, decay, first, maximize=second, decoupled_weight_decay=third)
    else:
        nesterov = first and one > 0
        opt = SGD([p], lr, one, 0.0 if nesterov else other, decay, nesterov, maximize=second)
    for _ in range(3):
        before = p.detach().clone()
        p.grad = torch.randn(7, generator=draw, dtype=torch.float64)
        found = Coming(opt).tell(p)
        opt.step()
        assert found is not None
        torch.testing.assert_close(found, p.detach() - before, rtol=1e-8, atol=1e-12)


def test_steps_that_nobody_tells_before() -> None:
    class Own(Adam):
        """May do anything."""

    model = net()
    p = list(model.parameters())
    assert foreseeable(Adam(p, lr=0.1))
    assert not foreseeable(Own(p, lr=0.1))
    assert not foreseeable(COMPARED["RMSprop"](p))
    assert not foreseeable(Adam(p, lr=0.1, differentiable=True))
    assert not foreseeable(Adam([q.detach().half().requires_grad_() for q in p], lr=0.1))
    opt = Adam(p, lr=0.1)
    for _ in range(2):
        assert foreseeable(opt)
        opt.register_step_post_hook(lambda *_: None)
    assert not foreseeable(opt)
    table = nn.Embedding(3, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    assert Coming(SGD(table.parameters(), lr=0.1)).tell(table.weight) is None


def test_what_a_coming_step_depends_on() -> None:
    p = list(net().parameters())
    opt = READ["a rate as a tensor"](p)
    coming = Coming(opt)
    before = coming.settings()
    opt.param_groups[0]["lr"] = torch.tensor(0.5)
    assert coming.settings() == before
    assert coming.rate(p[0]) == 0.5
    opt.param_groups[0]["betas"] = (0.5, 0.9)
    assert coming.settings() != before
    before = coming.settings()
    opt.grad_scale = torch.ones(())  # type: ignore[attr-defined]
    assert coming.settings() != before


@pytest.mark.parametrize("make", READ.values(), ids=READ)
@pytest.mark.parametrize("parts", [1, 2], ids=["one batch", "micro-batches"])
def test_records_are_those_of_compared_parameters(make: Make, parts: int, tmp_path: Path) -> None:
    found = {}
    for fast in (True, False):
        model = net()
        opt = make(list(model.parameters()))
        with Cockpit(model, opt, quantities=FIRST_ORDER, run=tmp_path / str(fast), fast=fast) as cockpit:
            for t in range(5):
                opt.zero_grad()
                for k in range(parts):
                    cockpit.backward(losses_of(model, *batch(10 * t + k)))
                opt.step()
        found[fast] = records(tmp_path / str(fast))
    assert found[True][3, "update_size", ""][0] > 0
    assert not differences(found[True], found[False])


def test_a_step_that_could_not_be_read_is_a_gap_once(tmp_path: Path) -> None:
    model = net()
    opt = READ["a fused loop"](list(model.parameters()))
    with Cockpit(model, opt, quantities=["update_size"], run=tmp_path) as cockpit:
        for t in range(4):
            opt.zero_grad()
            cockpit.backward(losses_of(model, *batch(t)))
            if t == 1:
                opt.found_inf = torch.zeros(())  # type: ignore[attr-defined]
            opt.step()
            if t == 1:
                del opt.found_inf  # type: ignore[attr-defined]
    found = records(tmp_path)
    assert [found[t, "update_size", ""][1] == "ok" for t in range(4)] == [True, False, True, True]
