"""A training that is interrupted and resumed: the run goes on as if nothing had happened.

python examples/resume.py --steps 20
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from cockpit import Cockpit, Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps


def train(run: Path, checkpoint: Path, last: int) -> None:
    """Train up to step ``last``, from the checkpoint if there is one, and leave a checkpoint."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    cockpit = Cockpit(model, optimizer, config="economy", run=run)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        cockpit.load_state_dict(saved["cockpit"])

    while cockpit.step < last:
        x = torch.randn(32, 10, generator=torch.Generator().manual_seed(cockpit.step))
        losses = (model(x) - x.sum(1, keepdim=True)).square().flatten()
        cockpit.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "cockpit": cockpit.state_dict(),
    }
    torch.save(saved, checkpoint)
    cockpit.close()


with TemporaryDirectory() as folder:
    place = Path(folder)
    train(place / "twice", place / "checkpoint.pt", last=steps // 2)
    train(place / "twice", place / "checkpoint.pt", last=steps)  # goes on where the first one ended
    train(place / "once", place / "other.pt", last=steps)
    twice, once = Run(place / "twice"), Run(place / "once")
    for name in ("loss", "distance", "alpha"):
        a, b = twice.series(name), once.series(name)
        equal = np.array_equal(a.values, b.values, equal_nan=True)
        print(f"{name}: {len(a)} steps in two parts, {len(b)} in one; equal: {equal}")
    print([(event.step, event.kind) for event in twice.events()])
