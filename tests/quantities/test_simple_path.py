"""Every quantity by shortcuts and compiled kernels, and in the plain way without them: equal records, equal gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cockpit import Cockpit, GradAbsMax, GradHist1d, HessMaxEV, Histogram
from cockpit.engine.curvature import curvature_tapes
from cockpit.testing import problem, problems
from session.loops import FIRST_ORDER, Records, differences, events, records
from watched import ADDITIVE

QUANTITIES: list[Any] = [
    *FIRST_ORDER,
    "hess_trace",
    "tic_diag",
    "tic_trace",
    HessMaxEV(tolerance=1e-9, products=500),
    GradHist1d(20, adapt=GradAbsMax(), label="adapted"),
]
PROBLEMS = [
    "mlp_dropout",  # a random forward pass
    "regression",
    "frozen",
    "conv2d_groups",
    "layer_norm",
    "batch_norm_train",  # examples that depend on each other
    "embedding",
    "tied_modules",
    "attention_second",
    "lstm_cell",
    "unused",
    "module_and_functional",  # no formula: rows of the graph
    "checkpoint_reentrant",  # a graph that cannot be walked twice
    "tuple_outputs",
]
QUICK = ["conv1d", "rms_norm", "einsum", "two_views"]


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def watched(
    name: str,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    chunks: Sequence[Sequence[int]],
    folder: Path,
    fast: bool,
    quantities: Sequence[Any],
) -> tuple[Records, nn.Module]:
    """Train a fresh model under the cockpit, always with the same batches and random stream."""
    zoo = problem(name)
    model = zoo.build()
    opt = optimizer(model)
    with (
        torch.random.fork_rng(devices=()),
        Cockpit(model, opt, quantities=list(quantities), run=folder, fast=fast) as cockpit,
    ):
        torch.default_generator.manual_seed(0)
        for step, sizes in enumerate(chunks):
            opt.zero_grad()
            for inputs, targets in zoo.split(zoo.batch(sum(sizes), step), sizes):
                cockpit.backward(zoo.losses(model, inputs, targets))
            opt.step()
    return records(folder), model


def vanishing(found: Records, expected: Records) -> Records:
    """Ratios of two roundings, of parameters whose gradient is zero but for them: a bias before a normalisation."""
    return {
        key: value
        for key, value in found.items()
        if key[2] and key[1] not in ADDITIVE and key in expected and _vanishes(expected, key[0], key[2])
    }


def _vanishes(expected: Records, step: int, scope: str) -> bool:
    norms = [expected.get((t, "grad_norm", scope), (1.0, ""))[0] for t in (step, step + 1)]
    return min(norms) < 1e-13


def compare(
    name: str,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    chunks: Sequence[Sequence[int]],
    folder: Path,
    quantities: Sequence[Any] = QUANTITIES,
    gap: str = "",
) -> Records:
    """Watch the same training in both ways; return the records.

    ``gap``: of ``alpha`` where a step had been told before and became another one by a second micro-batch.
    """
    (found, model), (expected, other) = (
        watched(name, optimizer, chunks, folder / str(fast), fast, quantities) for fast in (True, False)
    )
    if gap and found[1, "alpha", ""][1].startswith(gap):
        for known in (found, expected):
            for key in [key for key in known if key[0] == 1 and key[1].startswith("alpha")]:
                del known[key]
    assert differences(found, {**expected, **vanishing(found, expected)}, rtol=1e-9) == []
    full = {key: status for key, (_, status) in found.items()}
    assert full == {key: status for key, (_, status) in expected.items()}, "statuses in full"
    assert events(folder / "True") == events(folder / "False")
    assert {name for _, name, _ in found} >= {"loss", "norm_test", "grad_hist2d", "update_size"}
    assert any(isinstance(value, Histogram) and value.total for value, _ in found.values())
    for (key, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), f"{key}: one of them changed the training"
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_quantity(name: str, tmp_path: Path) -> None:
    found = compare(name, plain, [[4], [4], [3]], tmp_path)
    known = {n for (_, n, scope), (value, _) in found.items() if scope == "" and value == value}
    assert {"loss", "grad_norm", "update_size", "distance"} <= known, "something to compare"


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize(
    ("optimizer", "chunks"),
    [(momentum, [[4], [4], [3]]), (plain, [[2, 3], [2, 3], [2, 3]]), (momentum, [[3], [1, 2], [3]])],
    ids=["momentum", "micro-batches", "now one, now two"],
)
def test_other_steps(
    name: str,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    chunks: Sequence[Sequence[int]],
    tmp_path: Path,
) -> None:
    compare(name, optimizer, chunks, tmp_path, FIRST_ORDER, "needs_full_batch" if len(chunks[0]) == 1 else "")


REPLAYED = ["gpt", "lstm", "class_token"]


@pytest.mark.parametrize("optimizer", [plain, momentum], ids=["plain", "momentum"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p.name, marks=() if p.name in REPLAYED else pytest.mark.slow)
        for p in problems()
        if p.name not in ("rnn_packed", "instance_norm", "branches", "experts")  # every step is another
    ],
)
def test_steps_that_are_replayed(
    name: str, optimizer: Callable[[nn.Module], torch.optim.Optimizer], tmp_path: Path
) -> None:
    """From the fifth on; of those without a layer to replay, none."""
    compare(name, optimizer, [[4]] * 8, tmp_path, FIRST_ORDER)


@pytest.mark.parametrize("name", ["branches", "experts"])
def test_parameters_that_take_part_now_and_then(name: str, tmp_path: Path) -> None:
    compare(name, plain, [[2], [1], [2], [1], [3], [1], [2]], tmp_path, FIRST_ORDER)


BY_HAND = ["mlp", "conv2d_groups", "tied_modules", "gpt", "attention_fused"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(p.name, marks=() if p.name in BY_HAND else pytest.mark.slow) for p in problems()],
)
def test_products_by_hand(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are made of models that are too large to be recorded, where that gives the same as the engine."""
    monkeypatch.setattr(curvature_tapes, "ON_CPU", 0)
    monkeypatch.setattr(curvature_tapes, "BY_HAND", 1)
    monkeypatch.setattr(curvature_tapes, "AN_OPERATION", 0)
    served: list[bool] = []
    compared = curvature_tapes._served_by_hand

    def seen(*args: Any) -> bool:
        served.append(compared(*args))
        return served[-1]

    monkeypatch.setattr(curvature_tapes, "_served_by_hand", seen)
    eigenvalue = HessMaxEV(tolerance=1e-9, products=500)
    quantities = ["loss", "norm_test", "grad_hist2d", "update_size", "hess_trace", eigenvalue]
    compare(name, plain, [[4]] * 8, tmp_path, quantities)
    assert served == [True] or name not in BY_HAND
