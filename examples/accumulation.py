"""Gradient accumulation: several micro-batches make one step, and the cockpit sees them as one batch.

python examples/accumulation.py --steps 20
"""

import argparse

import torch
from torch import nn

from cockpit import Cockpit, Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps

MICRO_BATCHES, SIZE = 4, 8

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
cockpit = Cockpit(model, optimizer, quantities=["loss", "grad_norm", "norm_test"], run="accumulation")

for _ in range(steps):
    for _ in range(MICRO_BATCHES):
        x = torch.randn(SIZE, 10)
        losses = (model(x) - x.sum(1, keepdim=True)).square().flatten()
        # The objective is scaled by the loop itself, so the backward call stays in the loop and is watched. Any
        # weighting will do: it is read off the losses' own gradients.
        with cockpit.watch(losses):
            (losses.mean() / MICRO_BATCHES).backward()
    optimizer.step()
    optimizer.zero_grad()
cockpit.close()

run = Run(cockpit.run)
print(f"{len(run.series('loss'))} steps of {MICRO_BATCHES} x {SIZE} examples in {run.path}")
print("norm_test, of the whole batches:", run.series("norm_test").values[-3:])
