"""Loops that hand the optimiser a closure, as frameworks do, watched without a call in the loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit import Run, attach


def test_attached_to_a_loop_of_closures(tmp_path: Path):
    """The backward pass runs inside ``optimizer.step``: it is the step's own, not a second evaluation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cockpit = attach(model, optimizer, quantities=["grad_norm", "norm_test"], run=tmp_path)
    expected = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        x, y = torch.randn(5, 4).double(), torch.randint(3, (5,))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        expected.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
    cockpit.close()
    run = Run(tmp_path)
    assert run.series("grad_norm").values.tolist() == pytest.approx(expected, rel=1e-12)
    assert run.series("norm_test").status == ["ok"] * 3
