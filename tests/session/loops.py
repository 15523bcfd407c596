"""A small float64 training under the cockpit, its records as a dictionary, and how to compare two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit import Cockpit, HessMaxEV, HessTrace, Histogram, Run, TICDiag, TICTrace
from cockpit.presets import ECONOMY

Records = dict[tuple[int, str, str], tuple[Any, str]]
"""(step, name, scope) → (value, status)."""

FIRST_ORDER = [*ECONOMY, "grad_hist2d", "mean_gsnr", "cabs", "early_stopping", "parameters"]
ROOTS = {"norm_test", "inner_test", "ortho_test"}
"""Roots of differences of nearly equal sums, of which less than 1e-13 counts as rounding (`quantities.noise`)."""
CURVATURE = [HessTrace("diag_h"), TICDiag("diag_ggn_exact"), TICTrace("diag_ggn_exact")]


def everything() -> list[Any]:
    """Every quantity with a reproducible value; the eigenvalue to more digits than usual, to compare it."""
    return [*FIRST_ORDER, *CURVATURE, HessMaxEV(tolerance=1e-9, products=500)]


def net(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two linear layers, 5-6-3, always the same."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def batch(step: int, n: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The n examples of a step."""
    g = torch.Generator().manual_seed(100 + step)
    return torch.randn(n, 5, generator=g, dtype=torch.float64).to(dtype), torch.randint(3, (n,), generator=g)


def losses_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One cross-entropy per example."""
    return F.cross_entropy(model(x), y, reduction="none")


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    """Plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def trained(
    folder: Path,
    body: Callable[[Cockpit, nn.Module, torch.optim.Optimizer, int], object],
    steps: int = 3,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    quantities: Sequence[Any] | None = None,
    **settings: Any,
) -> Records:
    """Train for some steps; ``body`` runs the backward passes, the optimiser steps here."""
    model = net() if model is None else model
    opt = optimizer(model)
    chosen = everything() if quantities is None and "config" not in settings else quantities
    with Cockpit(model, opt, quantities=chosen, run=folder, **settings) as cockpit:
        for t in range(steps):
            opt.zero_grad()
            body(cockpit, model, opt, t)
            opt.step()
    return records(folder)


def plain(cockpit: Cockpit, model: nn.Module, opt: torch.optim.Optimizer, t: int) -> None:
    """The backward pass that everything is compared with: one batch, the mean of its losses."""
    cockpit.backward(losses_of(model, *batch(t)))


def records(folder: Path) -> Records:
    """Everything a run holds."""
    found: Records = {}
    for series in Run(folder):
        for step, value, status in zip(series.steps.tolist(), series.values, series.status, strict=True):
            found[step, series.name, series.scope] = (value, status)
    return found


def events(folder: Path) -> list[tuple[int, str]]:
    """(step, kind) of every event but those of a busy machine."""
    return [(e.step, e.kind) for e in Run(folder).events() if e.kind != "slow_step"]


def differences(
    found: Records,
    expected: Records,
    rtol: float = 1e-8,
    leave_out: Iterable[str] = (),
    status: bool = True,
    atol: float = 1e-12,
) -> list[str]:
    """Return what is missing, too much, or not the same, as readable lines; counts must be equal.

    Whether both know a value is compared too; ``status`` compares the reasons' first words.
    """
    hidden = {"hess_max_ev.products", "hess_max_ev.residual", "time", *leave_out}
    keys = [k for k in {**expected, **found} if k[1] not in hidden]
    assert keys
    wrong = []
    for key in sorted(keys):
        if key not in found or key not in expected:
            wrong.append(f"{key}: only in {'found' if key in found else 'expected'}")
            continue
        (a, why), (b, reason) = found[key], expected[key]
        agree = same(a, b, rtol, atol) or (key[1] in ROOTS and same(a**2, b**2, rtol, 1e-13))
        if not agree:
            wrong.append(f"{key}: {a} ({why}), expected {b} ({reason})")
        elif status and why.split(":")[0] != reason.split(":")[0]:
            wrong.append(f"{key}: status {why!r}, expected {reason!r}")
    return wrong


def same(a: Any, b: Any, rtol: float, atol: float) -> bool:
    """Compare two stored values."""
    if isinstance(a, Histogram) and isinstance(b, Histogram):
        apart = ("underflow", "overflow", "nan", "inf")
        return np.array_equal(a.counts, b.counts) and all(getattr(a, k) == getattr(b, k) for k in apart)
    if isinstance(a, Histogram) or isinstance(b, Histogram) or np.shape(a) != np.shape(b):
        return False
    return bool(np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True))


def individual_gradients(losses: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """∇ℓ_i of each parameter [N, *shape], one backward pass after the other; the graph is kept."""
    rows = [
        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        for loss in losses
    ]
    return [torch.stack(columns) for columns in zip(*rows, strict=True)]


class Training:
    """A small training under the cockpit, step by step."""

    def __init__(self, folder: Path, quantities: Any = ECONOMY, **settings: Any) -> None:
        self.folder, self.model, self.t = folder, net(), 0
        self.opt = sgd(self.model)
        self.cockpit = Cockpit(self.model, self.opt, quantities=list(quantities), run=folder, **settings)

    def step(self, body: Callable[..., object] = plain) -> None:
        self.opt.zero_grad()
        body(self.cockpit, self.model, self.opt, self.t)
        self.opt.step()
        self.t += 1
