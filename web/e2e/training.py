"""A small real training for the browser tests: ``python training.py FOLDER --steps 60 --lr 0.1 --pause 0.05``.

``--times FILE`` writes a line for each step that has ended, with the wall clock: the tests compare it with the moment
at which the page shows that step. ``--layer`` names the first layer, to try names that nobody would give.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from cockpit import Cockpit

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--config", default="full")
parser.add_argument("--layer", default="first")
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--times", type=Path)
options = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(512, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(dim=1)

model = nn.Sequential()
model.add_module(options.layer, nn.Linear(20, 32))
model.add_module("active", nn.Tanh())
model.add_module("middle", nn.Linear(32, 16))
model.add_module("bend", nn.ReLU())
model.add_module("last", nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
criterion = nn.CrossEntropyLoss(reduction="none")

times = options.times.open("w", encoding="ascii") if options.times else None
with Cockpit(model, optimizer, config=options.config, run=options.folder) as cockpit:
    for step in range(options.steps):
        batch = torch.randint(512, (32,))
        optimizer.zero_grad()
        cockpit.backward(criterion(model(inputs[batch]), targets[batch]))
        optimizer.step()
        if times is not None:
            print(step, time.time(), file=times, flush=True)
        time.sleep(options.pause)
