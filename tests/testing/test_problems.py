"""Every problem of the zoo is what it says: reproducible, cut along its batch axis, with true flags."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch
from torch import Tensor

from cockpit.testing import Problem, objective, problem, problems

ZOO = pytest.mark.parametrize("p", problems(), ids=lambda p: p.name)


def trained(model: torch.nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def test_names_are_unique_and_found() -> None:
    names = [p.name for p in problems()]
    assert len(set(names)) == len(names) >= 60
    assert problem("gpt").name == "gpt"
    with pytest.raises(KeyError, match="No problem is called 'nothing'"):
        problem("nothing")


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(importlib.import_module("cockpit.testing.problems"))
    assert result.attempted >= 2
    assert result.failed == 0


@ZOO
def test_repeats_itself_and_leaves_the_random_stream_alone(p: Problem) -> None:
    before = torch.get_rng_state()
    first, second = p.build(), p.build()
    (inputs, targets), (again, _), (other, _) = p.batch(6, 1), p.batch(6, 1), p.batch(6, 2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert all(a is not b for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(inputs, other, strict=True))
    with torch.random.fork_rng(devices=()):
        losses = p.losses(first, inputs, targets)
        assert p.random is not torch.equal(before, torch.get_rng_state())
    assert losses.shape == (6,)
    assert losses.dtype == torch.float64


@ZOO
def test_micro_batches_give_the_losses_of_the_batch_unless_coupled(p: Problem) -> None:
    model, batch = p.build(), p.batch(6)
    whole = p.losses(model, *batch)
    parts = torch.cat([p.losses(model, *piece) for piece in p.split(batch, [2, 4])])
    if not p.random:
        assert p.coupled is not torch.allclose(whole, parts, rtol=1e-12)


@ZOO
def test_flags_of_differentiation_are_true(p: Problem) -> None:
    model, batch = p.build(), p.batch(6)
    outputs, parameters = model(*batch[0]), trained(model)
    assert isinstance(outputs, Tensor) is p.outputs
    loss = p.criterion(outputs, batch[1]).mean()
    if not p.grad_calls:
        with pytest.raises(RuntimeError, match="checkpoint"):
            torch.autograd.grad(loss, parameters)
        return
    grads = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    again = torch.stack([g.square().sum() for g in grads if g is not None]).sum()
    if p.double_backward:
        torch.autograd.grad(again, parameters, allow_unused=True)
    else:
        with pytest.raises((RuntimeError, NotImplementedError), match="derivative"):
            torch.autograd.grad(again, parameters, allow_unused=True)


@ZOO
def test_works_in_single_precision(p: Problem) -> None:
    model, batch = p.build(torch.float32), p.batch(5, dtype=torch.float32)
    losses = p.losses(model, *batch)
    assert losses.dtype == torch.float32
    assert losses.isfinite().all()


@pytest.mark.parametrize(("weighting", "factor"), [("mean", 0.25), ("sum", 1.0), ("scaled", 256.0)])
def test_objective_weights_all_examples_alike(weighting: str, factor: float) -> None:
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64, requires_grad=True)
    objective(losses, weighting).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [factor] * 4


def test_objective_with_weights() -> None:
    losses = torch.ones(4, dtype=torch.float64, requires_grad=True)
    objective(losses, "weighted").backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.125, 0.25, 0.375, 0.5]
