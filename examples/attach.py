"""A loop that is not touched at all: one line after model and optimiser are made.

python examples/attach.py --steps 20
"""

import argparse

import torch
from torch import nn

import cockpit

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

watching = cockpit.attach(
    model, optimizer, quantities=["grad_norm", "norm_test", "update_size"], run="attach"
)

for _ in range(steps):
    x = torch.randn(32, 10)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
watching.close()

# The losses of single examples were never seen: the objective is taken for their mean, and the run says so.
run = cockpit.Run(watching.run)
print("assumption:", run.meta["assumption"])
for name in ("grad_norm", "norm_test", "update_size"):
    print(f"{name:>12}: {run.series(name).values[-3:]}")
