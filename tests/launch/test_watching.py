"""What is found in a script: models, by their optimisers and by being called; and what is left alone."""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from cockpit.launch.watching import Watching
from cockpit.session import Cockpit, attach
from cockpit.store.run import Run, find_runs

Start = Callable[[], Watching]
CALL = nn.Module.__call__


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Begins to watch; all that is changed for that in torch and in us is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COCKPIT_LOGS", raising=False)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    monkeypatch.setattr(nn.Module, "__call__", CALL)
    monkeypatch.setattr(Cockpit, "__init__", Cockpit.__init__)
    steps = sys.modules["torch.optim.optimizer"]  # torch.optim does not have it as an attribute
    monkeypatch.setattr(steps, "_global_optimizer_post_hooks", OrderedDict())
    # other tests have imported it; a script that has is left alone
    monkeypatch.delitem(sys.modules, "cockpit.legacy.cockpit", raising=False)
    begun: list[Watching] = []

    def make() -> Watching:
        begun.append(Watching("job", {}, None))
        return begun[-1]

    yield make
    for watching in begun:
        atexit.unregister(watching.close)


def network(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 4) -> None:
    for _ in range(steps):
        model(torch.rand(5, 3)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def runs() -> dict[str, Run]:
    return {path.name.split("-", 2)[2]: Run(path) for path in find_runs(Path("cockpit_logs"))}


def test_generator_and_discriminator_have_a_run_each(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = start()

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = network(4), network(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.generator(x)

    pair = Pair()
    first, second = Adam(pair.generator.parameters()), SGD(pair.discriminator.parameters(), lr=0.1)
    for _ in range(3):
        made = pair(torch.rand(5, 3))
        pair.discriminator(made.detach()).mean().backward()
        second.step()
        second.zero_grad()
        pair.discriminator(made).mean().backward()
        first.step()
        first.zero_grad()
        second.zero_grad()
    watching.close()
    found = runs()
    assert set(found) == {"job", "job-2"}
    assert {name: run.meta["optimizer"] for name, run in found.items()} == {"job": "Adam", "job-2": "SGD"}
    assert len(found["job"].series("grad_norm")) == 3
    assert found["job-2"].meta["parameters"]["0.weight"]["shape"] == [6, 3]
    assert capsys.readouterr().err.count("cockpit: watching") == 2


def test_two_optimisers_of_one_model_step_together(start: Start) -> None:
    watching, model = start(), network()
    train(model, SGD([model[0].weight], lr=0.1), Adam([model[0].bias, *model[2].parameters()]))
    watching.close()
    (run,) = runs().values()
    assert run.meta["optimizer"] == "SGD+Adam"
    assert run.series("grad_norm").steps.tolist() == [0, 1, 2, 3]


def test_a_later_optimiser_is_left_alone_and_said_once(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    watching, model = start(), network()
    train(model, SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        train(model, Adam(model.parameters()))
    watching.close()
    assert set(runs()) == {"job"}
    assert capsys.readouterr().err.count("Adam is not") == 1
    assert nn.Module.__call__ is CALL


@pytest.mark.parametrize("make", [Cockpit, attach])
@pytest.mark.parametrize("late", [False, True])
def test_a_cockpit_of_the_scripts_own_goes_before(
    start: Start, capsys: pytest.CaptureFixture[str], make: Callable[..., Cockpit], late: bool
) -> None:
    watching, model = start(), network()
    optimizer = SGD(model.parameters(), lr=0.1)
    if late:
        model(torch.rand(5, 3))  # a trial, before the training begins
    with make(model, optimizer, run="own") as cockpit:
        for _ in range(3):
            with cockpit.watch() if make is Cockpit else torch.enable_grad():
                model(torch.rand(5, 3)).square().mean().backward()
            optimizer.step()
    watching.close()
    assert set(runs()) == {"own"}
    assert len(runs()["own"].series("grad_norm")) == 3
    assert capsys.readouterr().err.count("\n") == 2 * late


def test_the_called_model_is_found_around_its_parts_and_not_in_evaluation(start: Start) -> None:
    watching, model = start(), nn.Sequential(network(), nn.Linear(3, 2))
    optimizer = SGD(model[0].parameters(), lr=0.1)
    with torch.no_grad():
        model[0](torch.rand(5, 3))
    train(model, optimizer)
    watching.close()
    assert "1.weight" in runs()["job"].meta["parameters"]


def test_parts_called_one_by_one_are_explained(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    watching, first, second = start(), network(), network()
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(4):
        second(first(torch.rand(5, 3))).mean().backward()
        optimizer.step()
    assert nn.Module.__call__ is CALL  # given up: calls cost nothing any more
    watching.close()
    said = capsys.readouterr().err
    assert "no module that holds all parameters of SGD was called" in said
    assert said.count("\n") == 1
    assert not runs()


def test_a_dropped_model_is_not_kept(start: Start) -> None:
    watching, model = start(), network()
    optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    gone = weakref.ref(model)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    gc.collect()
    assert gone() is None
    train(model, optimizer, steps=2)
    watching.close()
    assert [(len(run.series("grad_norm")), run.status) for _, run in sorted(runs().items())] == [
        (4, "finished"),
        (2, "finished"),
    ]


def test_our_errors_are_not_the_scripts(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("cockpit.session.attach", broken)
    watching, model = start(), network()
    train(model, SGD(model.parameters(), lr=0.1))
    watching.close()
    assert capsys.readouterr().err == "cockpit: not watched: ZeroDivisionError: ours\n"


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models_are_left_alone(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    watching, model = start(), network()
    called = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    train(called, SGD(model.parameters(), lr=0.1))
    watching.close()
    assert capsys.readouterr().err.startswith("cockpit: Sequential is compiled and left alone")
    assert not runs()


def test_no_optimiser(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start().close()
    assert "made no optimiser" in capsys.readouterr().err
