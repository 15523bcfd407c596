"""Data-parallel training: every process sees its share, the first one records the whole batch.

torchrun --nproc-per-node 2 examples/ddp.py --steps 20
python examples/ddp.py --steps 20            # starts two processes by itself
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from cockpit import Cockpit, Run


def train(rank: int, steps: int) -> None:
    """Train in one of the processes."""
    os.environ.setdefault("RANK", str(rank))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    # The same line on every process: all compute, one writes.
    cockpit = Cockpit(model, optimizer, quantities=["loss", "grad_norm", "norm_test"], run="ddp")
    torch.manual_seed(1 + rank)  # every process draws data of its own
    for _ in range(steps):
        x = torch.randn(16, 10)
        losses = (model(x) - x.sum(1, keepdim=True)).square().flatten()
        cockpit.backward(losses)
        optimizer.step()
        optimizer.zero_grad()
    cockpit.close()

    if cockpit.run is not None:  # the process that wrote
        run = Run(cockpit.run)
        print(f"rank {rank} recorded {len(run.series('loss'))} steps of {dist.get_world_size()} processes")
        print("norm_test, of the joint batches:", run.series("norm_test").values[-3:])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    if "RANK" in os.environ:  # started by torchrun
        train(int(os.environ["RANK"]), steps)
    else:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        multiprocessing.spawn(train, (steps,), nprocs=2)
