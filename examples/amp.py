"""Mixed precision with a gradient scaler and clipping: gradients are recorded unscaled and unclipped.

python examples/amp.py --steps 20
"""

import argparse

import torch
from torch import nn

from cockpit import Cockpit, Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps

device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16 if device == "cuda" else torch.bfloat16

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler(device)
cockpit = Cockpit(model, optimizer, quantities=["loss", "grad_norm", "update_size"], run="amp")

for _ in range(steps):
    x = torch.randn(32, 10, device=device)
    with torch.autocast(device, dtype=half):
        outputs = model(x)
    losses = (outputs.float() - x.sum(1, keepdim=True)).square().flatten()

    with cockpit.watch(losses):  # whoever calls backward inside, with whatever scale
        scaler.scale(losses.mean()).backward()

    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)  # a step that the scaler skips becomes an event of the run
    scaler.update()
    optimizer.zero_grad()
cockpit.close()

run = Run(cockpit.run)
print("norm of the gradient, before clipping:", run.series("grad_norm").values[-3:])
print("size of the step, after clipping:     ", run.series("update_size").values[-3:])
print("skipped steps:", len(run.events("step_skipped")))
