"""Gradient accumulation: a step of several micro-batches is the step of the joined batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, InnerTest, every
from cockpit.testing import problem
from reference import twins
from session.loops import Records, batch, differences, losses_of, plain, records, sgd, trained
from watched import HISTOGRAMS, SCALARS
from watched import differences as from_twin
from watched import watch as watched_problem

SPLITS = [(3, 3), (2, 2, 2), (1, 5), (4, 2), (3, 2, 1)]


def in_pieces(folder: Path, splits: list[tuple[int, ...]]) -> Records:
    """Micro-batches that a user scales to the mean over the step; one split for every step."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        for xs, ys in zip(x.split(list(splits[t])), y.split(list(splits[t])), strict=True):
            losses = losses_of(model, xs, ys)
            with cockpit.watch(losses):
                (losses.sum() / len(x)).backward()

    return trained(folder, body, steps=len(splits))


@pytest.fixture
def joined(tmp_path: Path) -> Records:
    return trained(tmp_path / "joined", plain)


@pytest.mark.parametrize("split", SPLITS)
def test_every_quantity_is_that_of_the_joined_batch(tmp_path: Path, joined: Records, split: tuple[int, ...]):
    found = in_pieces(tmp_path / "pieces", [split] * 3)
    assert not differences(found, joined)
    assert all(np.isfinite(found[t, "hess_max_ev", ""][0]) for t in range(3))
    assert all(np.isfinite(found[t, "inner_test", ""][0]) for t in range(3))


@pytest.mark.parametrize("curvature", ["hess_trace", "tic_diag", "tic_trace"])
def test_curvature_of_micro_batches_has_values(tmp_path: Path, curvature: str):
    found = in_pieces(tmp_path / "pieces", [(3, 3)] * 3)
    assert all(np.isfinite(found[t, curvature, ""][0]) for t in range(3))


@pytest.mark.parametrize("k", [2, 3])
def test_backward_for_each_micro_batch(tmp_path: Path, k: int):
    """`cockpit.backward` takes the mean of each; the user divides the learning rate, or lives with a sum."""

    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        for xs, ys in zip(x.chunk(k), y.chunk(k), strict=True):
            cockpit.backward(losses_of(model, xs, ys))
        for p in model.parameters():
            assert p.grad is not None
            p.grad /= k

    expected = trained(tmp_path / "joined", plain)
    assert not differences(trained(tmp_path / "pieces", body), expected)


def test_mean_of_means_by_the_user(tmp_path: Path, joined: Records):
    def body(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
        x, y = batch(t)
        for xs, ys in zip(x.chunk(3), y.chunk(3), strict=True):
            losses = losses_of(model, xs, ys)
            with cockpit.watch(losses):
                (losses.mean() / 3).backward()

    assert not differences(trained(tmp_path / "pieces", body), joined)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "layer_norm", "einsum", "tied_modules", "branches"])
@pytest.mark.parametrize("chunks", [[(4, 4)] * 3, [(5, 3)] * 3, [(4, 3, 1), (8,), (2, 6)]])
def test_oracle(tmp_path: Path, name: str, chunks: list[tuple[int, ...]]):
    """Means of unequal micro-batches lead elsewhere than the joined batch; the oracle goes the same way.

    Where more micro-batches came than before there may be a gap, with its reason, but no wrong value.
    """
    chosen = problem(name)
    twin = twins.train(chosen, sgd, chunks)
    run, _, _ = watched_problem(chosen, sgd, chunks, tmp_path / "r", [*SCALARS, *HISTOGRAMS])
    found = records(tmp_path / "r")
    gaps = {k for k, (_, why) in found.items() if why.startswith("needs_full_batch")}
    if len({len(c) for c in chunks}) == 1:
        assert not gaps
    wrong = from_twin(run, twin, [*SCALARS, *HISTOGRAMS], rtol=1e-7)
    excused = tuple(
        f"{name}[{scope}] at {t}:" for t, name, _ in gaps for scope in ("", *run_scopes(twin, name))
    )
    assert not [line for line in wrong if not line.startswith(excused or "none")]


def run_scopes(twin: twins.Twin, name: str) -> set[str]:
    return {scope for _, n, scope in twin.records if n == name}


def test_number_of_micro_batches_changes(tmp_path: Path):
    """Right or an explicit gap: never a wrong number."""
    splits = [(6,), (3, 3), (2, 2, 2), (6,), (6,), (3, 3), (3, 3), (6,)]
    found = in_pieces(tmp_path / "pieces", splits)
    expected = trained(tmp_path / "joined", plain, steps=len(splits))
    gaps = {k: why for k, (v, why) in found.items() if why.startswith("needs_full_batch")}
    for key in gaps:
        assert key[1] in ("inner_test", "ortho_test", "hess_max_ev")
        assert np.isnan(found[key][0])
    silent = {(t, name) for t, name, _ in gaps}
    known = {k: v for k, v in found.items() if k[:2] not in silent}
    same = {k: v for k, v in expected.items() if k[:2] not in silent}
    assert not differences(known, same)
    assert {t for t, _ in silent} <= {1, 5}, "only where more micro-batches came than in the step before"


def test_one_watched_among_several(tmp_path: Path):
    """A schedule that leaves steps out does not confuse the count of micro-batches."""
    x, y = batch(0)
    model = torch.nn.Linear(5, 3).double()
    opt = sgd(model)
    with Cockpit(model, opt, quantities=[InnerTest(when=every(2))], run=tmp_path / "r") as cockpit:
        for _ in range(4):
            opt.zero_grad()
            for xs, ys in zip(x.split(3), y.split(3), strict=True):
                cockpit.backward(losses_of(model, xs, ys))
            opt.step()
    found = records(tmp_path / "r")
    assert [k[0] for k in found if k[1:] == ("inner_test", "")] == [0, 2]
    assert all(found[t, "inner_test", ""][1] == "ok" for t in (0, 2))
