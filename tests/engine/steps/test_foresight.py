"""A step that is told from gradients and the optimiser's state is the one taken, and nothing is held for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from cockpit import Cockpit
from cockpit.engine.scripts.recorder import Recorder
from cockpit.engine.steps.batch import Batch
from cockpit.engine.steps.foresight import Foresight
from cockpit.session.moves import Coming
from session.loops import Records, differences, records

Make = Callable[[Any], Optimizer]
OPTIMISERS: dict[str, Make] = {
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "Nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: Adam(p, lr=0.01),
    "AdamW": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW, fused": lambda p: AdamW(p, lr=0.01, fused=True),
}


class Tokens(nn.Module):
    """A table of places, a tied embedding, a normalisation: every kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 6), nn.Parameter(torch.empty(4, 6))
        self.lstm, self.norm = nn.LSTM(6, 6, batch_first=True), nn.LayerNorm(6)
        self.head = nn.Linear(6, 7)
        draw = torch.Generator().manual_seed(0)
        for p in self.parameters():
            nn.init.normal_(p, std=0.5, generator=draw)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(x) + self.places)
        found: Tensor = self.head(self.norm(states))
        return found


def batch(t: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(t)
    return torch.randint(7, (5, 4), generator=draw), torch.randint(7, (5, 4), generator=draw)


Disturb = Callable[[nn.Module, Optimizer, int], object]


def trained(
    folder: Path,
    make: Make,
    fast: bool,
    disturb: Disturb = lambda m, o, t: None,
    entry: str = "backward",
    resume: bool = False,
) -> Records:
    """Train for six steps; ``disturb`` comes between the backward pass and the step."""
    model = Tokens().double()
    opt = make(model.parameters())
    settings: dict[str, Any] = {
        "quantities": ["alpha", "update_size", "norm_test"],
        "run": folder,
        "fast": fast,
    }
    cockpit = Cockpit(model, opt, **settings)
    for t in range(6):
        if resume and t == 4:
            state = cockpit.state_dict()
            cockpit.close()
            cockpit = Cockpit(model, opt, **settings)
            cockpit.load_state_dict(state)
        x, y = batch(t)
        opt.zero_grad()
        losses = nn.functional.cross_entropy(model(x).movedim(-1, 1), y, reduction="none").mean(1)
        if entry == "backward":
            cockpit.backward(losses)
        else:
            with cockpit.watch(losses):
                losses.mean().backward()
        disturb(model, opt, t)
        opt.step()
    cockpit.close()
    return records(folder)


SERVES = Recorder.serves


@pytest.fixture(autouse=True)
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record nothing: recordings have places for a step that comes later."""
    monkeypatch.setattr(Recorder, "serves", lambda device: False)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parameters' gradients were held when a pass was over."""
    counts: list[int] = []
    end = Batch.end

    def ended(batch: Batch) -> None:
        end(batch)
        counts.append(len(batch.held))

    monkeypatch.setattr(Batch, "end", ended)
    return counts


@pytest.mark.parametrize("entry", ["backward", "watch"])
@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
def test_records_are_those_of_the_step_taken(make: Make, entry: str, tmp_path: Path, held: list[int]) -> None:
    found = trained(tmp_path / "told", make, True, entry=entry)
    counts = held.copy()
    expected = trained(tmp_path / "waited for", make, False, entry=entry)
    assert differences(found, expected, rtol=1e-8) == []
    assert {status.partition(":")[0] for _, status in found.values()} <= {"ok", "uphill"}
    assert counts[0] > 0, "at the first step nobody knows whether gradients reach the optimiser as they are"
    assert counts[1:] == [0] * 5


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, held: list[int]) -> None:
    whole = trained(tmp_path / "whole", OPTIMISERS["AdamW"], True)
    assert trained(tmp_path / "parts", OPTIMISERS["AdamW"], True, resume=True) == whole
    assert held[1:6] == held[7:] == [0] * 5


def test_little_is_held_rather_than_foreseen(tmp_path: Path, held: list[int]) -> None:
    """A step is as large as its parameter; the factors of few examples are smaller."""
    model = nn.Linear(200, 100)
    opt = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Cockpit(model, opt, quantities=["alpha"], run=tmp_path) as cockpit:
        for t in range(4):
            opt.zero_grad()
            cockpit.backward(model(torch.ones(2, 200) * t).square().mean(1))
            opt.step()
    assert min(held) > 0


def test_steps_that_will_be_replayed_are_waited_for(
    tmp_path: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait, too: all have the same numbers to the last bit, wherever a run is resumed."""
    monkeypatch.setattr(Recorder, "serves", SERVES)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = Adam(model.parameters(), lr=0.1)
    with Cockpit(model, opt, quantities=["alpha"], run=tmp_path) as cockpit:
        for t in range(6):
            opt.zero_grad()
            cockpit.backward(model(torch.full((9, 5), float(t))).square().mean(1))
            opt.step()
    assert held, "the first ones are not replayed"
    assert min(held) > 0


def test_a_state_that_does_not_tell_is_a_gap_once(
    tmp_path: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Coming.tell
    monkeypatch.setattr(Coming, "tell", lambda self, p: tell(self, p) if p.ndim > 1 else None)
    found = trained(tmp_path, OPTIMISERS["Adam"], True)
    assert [found[t, "alpha", ""][1].partition(":")[0] for t in range(5)] == [
        "ok",
        "unforeseen",
        "ok",
        "ok",
        "ok",
    ]
    assert held[1] == 0
    assert min(held[2:]) > 0


@pytest.mark.parametrize("what", ["gradients", "a parameter", "the decay", "a loss scaler"])
def test_what_is_changed_before_the_step(what: str, tmp_path: Path, held: list[int]) -> None:
    """The step was another one: its slopes are a gap, and from then on it is waited for."""

    def disturb(model: nn.Module, opt: Optimizer, t: int) -> None:
        vars(opt).pop("grad_scale", None)
        if t != 3:
            return
        if what == "gradients":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        elif what == "a parameter":
            with torch.no_grad():
                next(model.parameters()).add_(0.1)
        elif what == "the decay":
            opt.param_groups[0]["weight_decay"] = 0.5
        else:
            opt.grad_scale = torch.ones(())  # type: ignore[attr-defined]

    found = trained(tmp_path / "told", OPTIMISERS["AdamW, fused"], True, disturb)
    assert held[1:4] == [0, 0, 0]
    assert min(held[4:]) > 0
    expected = trained(tmp_path / "waited for", OPTIMISERS["AdamW, fused"], False, disturb)
    assert found[3, "alpha", ""][1].startswith("clipped")
    # What the state tells is the optimiser's step, without what else was added to a parameter.
    other = ("alpha", "update_size") if what == "a parameter" else ("alpha",)
    known = {key: value for key, value in expected.items() if key[0] != 3 or not key[1].startswith(other)}
    assert differences({key: found[key] for key in known}, known, rtol=1e-8) == []


def test_a_rate_that_is_set_just_before_the_step(tmp_path: Path, held: list[int]) -> None:
    def disturb(model: nn.Module, opt: Optimizer, t: int) -> None:
        opt.param_groups[0]["lr"] = 0.1 / (1 + t)

    found = trained(tmp_path / "told", OPTIMISERS["AdamW"], True, disturb)
    assert held[1:] == [0] * 5
    assert (
        differences(found, trained(tmp_path / "waited for", OPTIMISERS["AdamW"], False, disturb), rtol=1e-8)
        == []
    )


class Descent:
    """Tells plain gradient descent."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def tell(self, parameter: Tensor) -> Tensor | None:
        return None if parameter.grad is None else parameter.grad * -self.lr

    def rate(self, parameter: Tensor) -> float:
        return self.lr

    def settings(self) -> Any:
        return None


def test_it_holds_as_long_as_nothing_was_changed() -> None:
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    descent = Descent(0.5)
    sight = Foresight({"p": p}, descent)
    step = sight.coming("p")
    assert step is not None
    torch.testing.assert_close(step[0] * step[1], torch.full((3,), -0.5))
    assert sight.holds()
    assert sight.factors() == {}
    descent.lr = 0.25
    assert sight.holds()
    assert sight.factors() == {"p": 0.5}
    p.grad.add_(1)
    assert not sight.holds()
    descent.lr = 0.0
    sight = Foresight({"p": p}, descent)
    sight.coming("p")
    assert sight.holds(), "a warm-up may begin without a step"
    assert sight.factors() == {}
    descent.lr = 0.5
    assert not sight.holds(), "of nothing, no rate makes a step"
