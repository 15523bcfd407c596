"""One of two data-parallel processes: ``python worker.py <rank> <folder>`` trains every case and ends."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cockpit import Cockpit
from session.loops import batch, everything, losses_of, net, sgd

CASES = {
    "ddp_equal": (6, 6),
    "ddp_unequal": (7, 5),
    "manual_equal": (6, 6),
    "manual_unequal": (9, 3),
    "manual_accumulated": (6, 6),
    "manual_unused": (6, 6),
    "ddp_unused": (6, 6),
}
STEPS = 3


class Routed(nn.Module):
    """The small net with a layer that takes part only where an input begins with a positive number."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.extra = net(), net(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        chosen = x[:, 0] > 2.5
        if bool(chosen.any()):
            result = result + chosen[:, None] * self.extra(x)
        return result


def model_of(case: str) -> nn.Module:
    return Routed() if case.endswith("unused") else net()


def data_of(case: str, t: int, n: int) -> tuple[Tensor, Tensor]:
    """The joined batch; in the cases ``…_unused`` only its last example takes the extra layer."""
    x, y = batch(t, n)
    if case.endswith("unused"):
        x[:, 0].clamp_(max=2.0)
        x[-1, 0] = 3.0
    return x, y


def train(case: str, rank: int, folder: Path) -> None:
    sizes = CASES[case]
    model = model_of(case)
    wrapped = case.startswith("ddp")
    unused = case.endswith("unused")
    network = DistributedDataParallel(model, find_unused_parameters=unused) if wrapped else model
    opt = sgd(model)
    with Cockpit(network, opt, quantities=everything(), run=folder / f"rank{rank}") as cockpit:
        assert (cockpit.run is None) == (rank > 0)
        for t in range(STEPS):
            opt.zero_grad()
            x, y = (part.split(list(sizes))[rank] for part in data_of(case, t, sum(sizes)))
            pieces = 2 if case.endswith("accumulated") else 1
            for xs, ys in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
                losses = losses_of(network, xs, ys)
                with cockpit.watch(losses):
                    # DDP averages over the ranks: with this factor the step is that of the joined batch.
                    (losses.sum() * (len(sizes) if wrapped else 1) / sum(sizes)).backward()
            if not wrapped:
                for p in model.parameters():
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                    dist.all_reduce(p.grad)
            opt.step()


if __name__ == "__main__":
    number, place = int(sys.argv[1]), Path(sys.argv[2])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}/meeting",
        rank=number,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    for name in CASES:
        train(name, number, place / name)
    dist.destroy_process_group()
