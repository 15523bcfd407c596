"""Two processes of which one has no examples in the second step; run as a script with a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from cockpit import Cockpit


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = nn.Linear(4, 2).double()
    nn.init.constant_(model.weight, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Cockpit(model, optimizer, config="economy", run=Path(folder) / "run") as cockpit:
        for step in range(4):
            n = 0 if step == 1 and rank == 1 else 3
            logits = model(torch.randn(n, 4).double())
            losses = nn.functional.cross_entropy(logits, torch.randint(2, (n,)), reduction="none")
            with cockpit.watch(losses):
                losses.sum().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
