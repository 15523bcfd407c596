"""A whole training with every kernel at work says what the plain way says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cockpit import Cockpit, Run
from cockpit.engine.layers import conv
from cockpit.presets import ECONOMY
from cockpit.store.record import Histogram


def trained(device: torch.device, optimizer: str, folder: Path, fast: bool) -> Run:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 6),
            nn.LayerNorm(6),
            nn.Linear(6, 3),
        ).to(device)
    opt = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "adam": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
    }[optimizer]()
    draw = torch.Generator().manual_seed(1)
    quantities = [*ECONOMY, "mean_gsnr"]
    with Cockpit(model, opt, quantities=quantities, run=folder, fast=fast) as cockpit:
        for _ in range(3):
            x = torch.randn(5, 2, 5, 5, generator=draw).to(device)
            y = torch.randint(0, 3, (5,), generator=draw).to(device)
            cockpit.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
            opt.step()
            opt.zero_grad()
    return Run(folder)


@pytest.mark.parametrize(
    ("optimizer", "rough"),
    [("sgd", False), pytest.param("adam", False, marks=pytest.mark.slow), ("sgd", True)],
)
def test_kernels_at_work(
    optimizer: str, rough: bool, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where products are rounded as TensorFloat-32 rounds them, more elements cross an edge."""
    monkeypatch.setattr(conv, "rounds", lambda backend: rough)
    found, plain = (trained(device, optimizer, tmp_path / str(fast), fast) for fast in (True, False))
    assert {event.kind for event in found.events()} <= {"slow_step"}, (
        "compiling, or interpreting, takes its time"
    )
    for name in plain.names():
        for scope in plain.scopes(name):
            a, b = found.series(name, scope), plain.series(name, scope)
            assert len(a) == len(b) > 0
            for x, y in zip(a.values, b.values, strict=True):
                if isinstance(y, Histogram):
                    assert isinstance(x, Histogram)
                    assert x.total == y.total
                    most = max(2, y.total // 50) if rough else 2
                    assert np.abs(x.counts - y.counts).sum() <= most, "elements next to an edge"
                else:
                    # a quotient of rounded squares is off by several times their rounding
                    rtol = 1e-2 if rough and name == "mean_gsnr" else 2e-3
                    np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-4, err_msg=f"{name} {scope}")
