"""A training of a zoo problem under the cockpit, and its comparison with the twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cockpit import Cockpit, Histogram, Run
from cockpit.testing import Problem, Weighting, objective
from reference.twins import Twin

SCALARS = [
    "loss",
    "grad_norm",
    "distance",
    "update_size",
    "alpha",
    "norm_test",
    "inner_test",
    "ortho_test",
    "mean_gsnr",
    "cabs",
    "early_stopping",
]
HISTOGRAMS = ["grad_hist1d", "grad_hist2d"]
ADDITIVE = ("grad_norm", "distance", "update_size", "grad_hist1d", "grad_hist2d", "parameters")


def watch(
    problem: Problem,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    chunks: Sequence[Sequence[int]],
    folder: Path,
    quantities: Sequence[Any],
    weighting: Weighting = "mean",
    seed: int = 0,
) -> tuple[Run, Cockpit, nn.Module]:
    """Train a fresh model, watched, with the twin's batches and random stream."""
    model = problem.build()
    opt = optimizer(model)
    with torch.random.fork_rng(devices=()), Cockpit(model, opt, quantities=quantities, run=folder) as cockpit:
        torch.default_generator.manual_seed(seed)
        for step, sizes in enumerate(chunks):
            opt.zero_grad()
            for inputs, targets in problem.split(problem.batch(sum(sizes), step), sizes):
                losses = problem.criterion(model(*inputs), targets)
                if weighting == "mean":
                    cockpit.backward(losses)
                else:
                    with cockpit.watch(losses):
                        objective(losses, weighting).backward()
            opt.step()
    return Run(folder), cockpit, model


def differences(run: Run, twin: Twin, names: Sequence[str], rtol: float = 1e-6) -> list[str]:
    """Return every value of these quantities that is not the twin's, as readable lines."""
    wrong = []
    expected = {key: v for key, v in twin.records.items() if key[1] in names}
    assert expected
    found: dict[tuple[str, str], dict[int, tuple[Any, str]]] = {}
    for name, scope in {(n, s) for _, n, s in expected}:
        if name in run.names() and scope in run.scopes(name):
            series = run.series(name, scope)
            rows = zip(series.steps.tolist(), series.values, series.status, strict=True)
            found[name, scope] = {t: (v, s) for t, v, s in rows}
    for (step, name, scope), (value, status) in sorted(expected.items(), key=lambda kv: str(kv[0])):
        if scope and name not in ADDITIVE and vanishes(twin, step, scope):
            continue  # a ratio of two roundings: a key's bias, a bias before a normalisation
        got = found.get((name, scope), {}).get(step)
        if got is None:
            wrong.append(f"{name}[{scope}] at {step}: missing, expected {value!r} ({status})")
        elif not same(got[0], value, rtol):
            wrong.append(f"{name}[{scope}] at {step}: {got!r}, expected {value!r} ({status})")
    return wrong


def vanishes(twin: Twin, step: int, scope: str) -> bool:
    """Say whether a parameter's individual gradients are zero but for rounding."""
    steps = twin.steps[step : step + 2]
    return any(np.abs(seen.gradients[scope]).max(initial=0) < 1e-13 for seen in steps)


def joined_at_zero(counts: np.ndarray) -> np.ndarray:
    """Add the two bins next to zero in each axis: which of them counts a number of 1e-17 is chance."""
    for axis in range(counts.ndim):
        half = counts.shape[axis] // 2
        below, middle, above = np.split(counts, [half - 1, half + 1], axis)
        counts = np.concatenate([below, middle.sum(axis, keepdims=True), above], axis)
    return counts


def same(got: Any, value: Any, rtol: float) -> bool:
    """Compare a stored value with the twin's: numbers to a tolerance, counts exactly."""
    if isinstance(value, dict) != isinstance(got, Histogram):
        return False
    if isinstance(got, Histogram):
        if not np.array_equal(joined_at_zero(got.counts), joined_at_zero(value["counts"])):
            return False
        return all(getattr(got, k) == value[k] for k in ("underflow", "overflow", "nan", "inf"))
    return bool(np.allclose(got, value, rtol=rtol, atol=1e-12, equal_nan=True))
