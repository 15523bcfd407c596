"""A plain training loop, watched: two lines more than without.

python examples/plain_loop.py --steps 100
"""

import argparse

import torch
from torch import nn

from cockpit import Cockpit, Run
from cockpit.data import fashion_mnist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
steps = parser.parse_args().steps

# Data, model, loss, optimiser: nothing here knows of the cockpit.
train, _ = fashion_mnist()
images = torch.from_numpy(train.images).float().div(255).flatten(1)
labels = torch.from_numpy(train.labels).long()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
criterion = nn.CrossEntropyLoss(reduction="none")  # one loss for each example
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

cockpit = Cockpit(model, optimizer, config="economy", run="plain_loop")
for _ in range(steps):
    batch = torch.randint(len(images), (64,))
    losses = criterion(model(images[batch]), labels[batch])
    cockpit.backward(losses)  # in place of losses.mean().backward()
    optimizer.step()  # the step is recorded when the optimiser has stepped
    optimizer.zero_grad()
cockpit.close()

# What was recorded; this part needs no torch and works in another process, also while training runs.
run = Run(cockpit.run)
print(f"{run.path}: {', '.join(run.names())}")
for name in ("loss", "grad_norm", "norm_test"):
    series = run.series(name)
    print(f"{name:>10} at steps {series.steps[-3:]}: {series.values[-3:]}")
