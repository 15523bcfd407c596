"""Watching changes nothing: parameters, gradients, buffers, random numbers, hooks, attributes, memory."""

from __future__ import annotations

import copy
import gc
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit as package
from cockpit import (
    Cockpit,
    Distance,
    GradHist1d,
    GradNorm,
    HessMaxEV,
    HessTrace,
    InnerTest,
    Loss,
    NormTest,
    UpdateSize,
    every,
)
from cockpit.engine.numbers.binning import edges
from cockpit.presets import FULL
from cockpit.testing import Problem, problems

ZOO = problems()
EVERYTHING = [*FULL, "mean_gsnr", "cabs", "early_stopping", "time", "parameters", "tic_trace"]
HOOKS = [
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)


Outcome = dict[str, Any]


def train(
    problem: Problem,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    dtype: torch.dtype,
    watcher: Callable[[nn.Module, torch.optim.Optimizer], Cockpit] | None,
    mode: str,
    steps: int = 3,
) -> Outcome:
    """Train; return everything that must not depend on who watches."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = problem.build(dtype)
    opt = optimizer(model)
    cockpit = watcher(model, opt) if watcher is not None else None
    grads = []
    for t in range(steps):
        opt.zero_grad()
        inputs, targets = problem.batch(5, t, dtype)
        losses = problem.losses(model, inputs, targets)
        if cockpit is None or mode == "attach":
            losses.mean().backward()
        elif mode == "backward":
            cockpit.backward(losses)
        else:
            with cockpit.watch(losses):
                losses.mean().backward()
        grads.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        opt.step()
    if cockpit is not None:
        cockpit.close()
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "gradients": [g for step in grads for g in step],
        "buffers": [b.clone() for b in model.buffers()],
        "torch": [torch.get_rng_state()],
        "others": [random.random(), np.random.rand()],
    }


def changed(found: Outcome, expected: Outcome) -> list[str]:
    """Return what is not the same to the bit."""
    wrong = []
    for key, values in expected.items():
        for k, (a, b) in enumerate(zip(found[key], values, strict=True)):
            same = torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
            if not same and not (isinstance(a, Tensor) and bool((a.isnan() & b.isnan() | (a == b)).all())):
                wrong.append(f"{key}[{k}]")
    return wrong


MODES: list[tuple[str, str, Callable[[nn.Module], torch.optim.Optimizer], torch.dtype]] = [
    ("backward", "economy", momentum, torch.float32),
    ("watch", "full", adam, torch.float64),
    ("backward", "full", adam, torch.float32),
    ("attach", "economy", momentum, torch.float32),
]


@pytest.mark.parametrize(("number", "problem"), list(enumerate(ZOO)), ids=lambda p: getattr(p, "name", ""))
def test_training_is_the_same_to_the_bit(tmp_path: Path, number: int, problem: Problem):
    """In the first mode and, in turn, one of the others; `full` also computes curvature at every step."""
    for k in (0, 1 + number % 3):
        mode, config, optimizer, dtype = MODES[k]
        make = package.attach if mode == "attach" else Cockpit
        expected = train(problem, optimizer, dtype, None, mode)
        found = train(
            problem, optimizer, dtype, lambda m, o: make(m, o, config=config, run=tmp_path / str(k)), mode
        )
        assert changed(found, expected) == [], (mode, config, dtype)


@pytest.mark.parametrize("name", ["mlp_dropout", "gpt", "batch_norm_train", "transformer_dropout", "conv2d"])
def test_everything_at_every_step_for_longer(tmp_path: Path, name: str):
    problem = next(p for p in ZOO if p.name == name)
    expected = train(problem, momentum, torch.float32, None, "backward", steps=5)
    quantities = [*EVERYTHING, HessTrace("diag_ggn_mc", label="mc"), HessTrace("diag_ggn_exact", label="ggn")]
    make = lambda m, o: Cockpit(m, o, quantities=quantities, run=tmp_path / "r")  # noqa: E731
    assert changed(train(problem, momentum, torch.float32, make, "backward", steps=5), expected) == []


def surroundings(model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
    """Hooks and attributes of all that we watch, and the functions that we may stand in for."""
    modules = {
        name: (sorted(vars(m)), {h: len(getattr(m, h)) for h in HOOKS if hasattr(m, h)}, type(m))
        for name, m in model.named_modules()
    }
    parameters = {
        name: (sorted(vars(p)), p._backward_hooks, len(getattr(p, "_post_accumulate_grad_hooks", None) or ()))
        for name, p in model.named_parameters()
    }
    optimizer = (len(opt._optimizer_step_pre_hooks), len(opt._optimizer_step_post_hooks), sorted(vars(opt)))
    functions = (
        F.scaled_dot_product_attention,
        torch.autograd.backward,
        torch.autograd.grad,
        Tensor.backward,
    )
    return {"modules": modules, "parameters": parameters, "optimizer": optimizer, "functions": functions}


@pytest.mark.parametrize("mode", ["backward", "attach"])
@pytest.mark.parametrize("problem", ZOO, ids=lambda p: p.name)
def test_nothing_is_left_after_close(tmp_path: Path, problem: Problem, mode: str):
    model = problem.build()
    opt = momentum(model)
    losses = problem.losses(model, *problem.batch(4))
    losses.mean().backward()
    opt.step()  # the optimiser makes its state
    before = surroundings(model, opt)
    make = package.attach if mode == "attach" else Cockpit
    config = "full" if problem.name in ("mlp", "gpt", "conv2d", "lstm", "attention") else "economy"
    cockpit = make(model, opt, config=config, run=tmp_path / "r")
    for t in range(2):
        opt.zero_grad()
        losses = problem.losses(model, *problem.batch(4, t))
        if mode == "attach":
            losses.mean().backward()
        else:
            cockpit.backward(losses)
        opt.step()
    cockpit.close()
    assert surroundings(model, opt) == before


@pytest.mark.parametrize("when", ["constructed", "watching", "failed"])
def test_nothing_is_left_wherever_it_is_closed(tmp_path: Path, when: str):
    problem = next(p for p in ZOO if p.name == "gpt")
    model = problem.build()
    opt = momentum(model)
    before = surroundings(model, opt)
    cockpit = Cockpit(model, opt, config="full", run=tmp_path / "r")
    if when == "watching":
        with cockpit.watch(problem.losses(model, *problem.batch(4))):
            cockpit.close()
    elif when == "failed":
        with pytest.raises(KeyError), cockpit.watch(problem.losses(model, *problem.batch(4))):
            raise KeyError("user")
    cockpit.close()
    assert surroundings(model, opt) == before


def tensors() -> int:
    """Tensors that are alive."""
    gc.collect()
    return sum(
        issubclass(type(o), Tensor) for o in gc.get_objects()
    )  # isinstance asks proxies for their class


def settled(expected: int) -> int:
    """Tensors that are alive once the writer has taken what waits (its arrays may share memory with some)."""
    for _ in range(50):
        if (count := tensors()) <= expected:
            return count
        time.sleep(0.1)
    return count


@pytest.mark.parametrize("mode", ["backward", "attach"])
@pytest.mark.parametrize("name", ["mlp", "einsum", "attention", "lstm", "batch_norm_train", "checkpoint"])
def test_no_tensor_outlives_the_cockpit(tmp_path: Path, name: str, mode: str):
    problem = next(p for p in ZOO if p.name == name)
    model = problem.build()
    opt = momentum(model)

    def step(t: int, cockpit: Cockpit | None) -> None:
        opt.zero_grad()
        losses = problem.losses(model, *problem.batch(4, t))
        if cockpit is None or mode == "attach":
            losses.mean().backward()
        else:
            cockpit.backward(losses)
        opt.step()

    step(0, None)
    before = tensors()
    make = package.attach if mode == "attach" else Cockpit
    cockpit = make(model, opt, config="full", run=tmp_path / "r")
    for t in range(3):
        step(t, cockpit)
    cockpit.close()
    edges.cache_clear()  # constants, the same for every cockpit
    assert tensors() <= before
    assert cockpit.step == 3  # it is still referred to, and holds nothing


@pytest.mark.parametrize("mode", ["backward", "attach", "accumulate"])
def test_memory_does_not_grow(tmp_path: Path, mode: str):
    problem = next(p for p in ZOO if p.name == "mlp_tanh")
    model = problem.build()
    opt = momentum(model)
    make = package.attach if mode == "attach" else Cockpit
    fewest = 0
    with make(model, opt, config="full", run=tmp_path / "r") as cockpit:
        for t in range(50):
            opt.zero_grad()
            for _ in range(2 if mode == "accumulate" else 1):
                losses = problem.losses(model, *problem.batch(4, t % 3))
                if mode == "attach":
                    losses.mean().backward()
                else:
                    cockpit.backward(losses)
            opt.step()
            del losses
            if t == 9:
                time.sleep(1.5)  # the writer empties its inbox
                fewest = tensors()
        last = settled(fewest)
    # Whether the last steps were recorded alone or together makes one or two; a tensor a step would be forty.
    assert last - fewest < 5


def test_graph_is_freed_when_the_step_is_over(tmp_path: Path):
    """Kept graphs (for eigenvalues of several micro-batches) die with the step, not with the run."""
    problem = next(p for p in ZOO if p.name == "mlp")
    model = problem.build()
    opt = momentum(model)
    with Cockpit(model, opt, quantities=[HessMaxEV(when=every(2)), "loss"], run=tmp_path / "r") as cockpit:
        for t in range(4):
            opt.zero_grad()
            losses = problem.losses(model, *problem.batch(4, t))
            graph = weakref.ref(losses)
            cockpit.backward(losses)
            opt.step()
            del losses
            assert graph() is None


def test_nothing_due_nothing_hooked(tmp_path: Path):
    """Between tracked steps the model carries no hook, and its forward pass is its own."""
    problem = next(p for p in ZOO if p.name == "mlp")
    model = problem.build()
    opt = momentum(model)
    before = surroundings(model, opt)
    forwards = [m.forward for m in model.modules()]
    quantities = [
        cls(when=every(3))
        for cls in (Distance, GradHist1d, GradNorm, InnerTest, Loss, NormTest, UpdateSize, HessMaxEV)
    ]
    with Cockpit(model, opt, quantities=quantities, run=tmp_path / "b") as cockpit:
        for t in range(6):
            due = t % 3 == 0
            hooked = any(len(getattr(m, h)) for m in model.modules() for h in HOOKS if hasattr(m, h))
            assert hooked == due
            if not due:
                now = surroundings(model, opt)
                assert now["parameters"] == before["parameters"]
                assert now["functions"] == before["functions"]
                assert [m.forward for m in model.modules()] == forwards
            opt.zero_grad()
            losses = problem.losses(model, *problem.batch(4, t))
            cockpit.backward(losses)
            assert not losses._backward_hooks
            opt.step()


def test_saved_model_and_copies_are_clean(tmp_path: Path):
    """`state_dict`, `copy.deepcopy` and `torch.save` of a watched model know nothing of us."""
    problem = next(p for p in ZOO if p.name == "mlp")
    model = problem.build()
    opt = momentum(model)
    keys = list(model.state_dict())
    with Cockpit(model, opt, config="economy", run=tmp_path / "r") as cockpit:
        cockpit.backward(problem.losses(model, *problem.batch(4)))
        opt.step()
        assert list(model.state_dict()) == keys
        twin = copy.deepcopy(model)
        torch.save(model.state_dict(), tmp_path / "model.pt")
        torch.save(opt.state_dict(), tmp_path / "opt.pt")
        twin(*problem.batch(4)[0])
        opt.zero_grad()
        losses = problem.losses(model, *problem.batch(4))
        cockpit.backward(losses)
        opt.step()
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(loaded[k], v) for k, v in twin.state_dict().items())


def test_copy_of_a_watched_model_is_not_watched(tmp_path: Path):
    """An averaged copy (EMA, SWA) that runs forward does not disturb what is watched."""
    problem = next(p for p in ZOO if p.name == "mlp")
    values = []
    for copied in (False, True):
        model = problem.build()
        opt = momentum(model)
        with Cockpit(model, opt, quantities=["norm_test"], run=tmp_path / str(copied)) as cockpit:
            other = copy.deepcopy(model)
            losses = problem.losses(model, *problem.batch(4))
            if copied:
                kept = problem.losses(other, *problem.batch(4, 1))
                kept.mean().backward()
            cockpit.backward(losses)
            opt.step()
        values.append(package.Run(tmp_path / str(copied)).series("norm_test").values[0])
    assert values[0] == values[1]


@pytest.mark.parametrize("config", ["economy", "full"])
def test_steps_leave_no_garbage(tmp_path: Path, config: str):
    """What forms a cycle lies about until Python's collector, which stops the training, has walked over everything."""
    problem = next(p for p in ZOO if p.name == "mlp_tanh")
    model = problem.build()
    opt, steps = momentum(model), 30
    with Cockpit(model, opt, config=config, run=tmp_path / "r") as cockpit:
        for t in range(2 * steps):
            if t == steps:  # by now everything has been examined and recorded
                cockpit._evaluation.settle(wait=True)
                gc.collect()
                gc.disable()
            opt.zero_grad()
            cockpit.backward(problem.losses(model, *problem.batch(4, 0)))
            opt.step()
        cockpit._evaluation.settle(wait=True)
        try:
            found = gc.collect()
        finally:
            gc.enable()
    assert found < 8 * steps  # torch walks through trees by functions that call themselves
