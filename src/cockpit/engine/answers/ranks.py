"""Ranks: joins over the processes of a data-parallel run, on top of torch.distributed.

Every rank sees its own examples; all ranks ask for the same statistics in the same order, so every collective
is met by all of them. One buffer for each way of joining: three collectives a step, whatever the number of
layers. Cost per tracked step: the bytes of what is asked for, once through an all-reduce.

A thread of gloo lets go of a collective's tensors some time after the collective has returned. If Python has dropped
them by then, the thread needs the interpreter to free them; a process that is just ending has none left to give, and
aborts. So they are held here until the thread has let go.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cockpit.engine.statistics import Join, Statistic

LINGERING = 0.1
"""Seconds to wait at most, at the end, for tensors that somebody else may hold for good."""


class Ranks:
    """The process group of a run."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self._lent: list[Tensor] = []

    def close(self) -> None:
        """Wait until the threads of the process group have let go of what they were given."""
        end = time.monotonic() + LINGERING
        while self._lent and time.monotonic() < end:
            self._take_back()
            time.sleep(0)  # which hands over the interpreter, too
        self._lent.clear()

    def _lend(self, *tensors: Tensor) -> None:
        """Hold what a collective is given."""
        self._take_back()
        self._lent += tensors

    def _take_back(self) -> None:
        # one use is Python's own
        self._lent = [tensor for tensor in self._lent if _uses(tensor) > 1]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over ranks."""
        y = x.detach().clone().to(self.device)
        self._lend(y)
        dist.all_reduce(y, op=dist.ReduceOp.SUM, group=self.group)
        return y.to(x.device)

    def first(self, numbers: list[int]) -> list[int]:
        """Return the numbers of the first rank."""
        mine = numbers if self.rank == 0 else [0] * len(numbers)
        return [int(n) for n in self.sum(torch.tensor(mine)).tolist()]

    def all(self, fine: bool) -> bool:
        """Say whether something holds on every rank."""
        return round(float(self.sum(torch.tensor(float(fine))))) == self.size

    def union(self, names: Iterable[str], universe: list[str]) -> set[str]:
        """Return the names that some rank has."""
        names = set(names)
        mask = torch.tensor([float(n in names) for n in universe], device=self.device)
        return {n for n, m in zip(universe, self.sum(mask).tolist(), strict=True) if m > 0}

    def cat(self, x: Tensor) -> Tensor:
        """Concatenate along the first axis in rank order; lengths may differ."""
        x = x.detach().to(self.device)
        lengths = self.sum(
            torch.nn.functional.one_hot(torch.tensor(self.rank), self.size).to(self.device) * len(x)
        ).tolist()
        padded = x.new_zeros(max(lengths), *x.shape[1:])
        padded[: len(x)] = x
        pieces = [torch.empty_like(padded) for _ in lengths]
        self._lend(padded, *pieces)
        dist.all_gather(pieces, padded, group=self.group)
        return torch.cat([piece[: int(k)] for piece, k in zip(pieces, lengths, strict=True)])

    def join(self, cells: Mapping[Statistic, dict[str, Tensor]]) -> None:
        """Join all cells in place, with one collective for each kind of join and dtype."""
        for kind in (Join.SUM, Join.MAX, Join.CAT):
            keys = [(s, n) for s, row in cells.items() if s.over_examples is kind for n in row]
            for dtype in sorted({cells[s][n].dtype for s, n in keys}, key=str):
                chosen = [(s, n) for s, n in keys if cells[s][n].dtype == dtype]
                values = [cells[s][n].detach().to(self.device) for s, n in chosen]
                if kind is Join.CAT:
                    joined = list(self.cat(torch.stack(values, 1)).unbind(1))
                else:
                    flat = torch.cat([v.flatten() for v in values])
                    op = dist.ReduceOp.SUM if kind is Join.SUM else dist.ReduceOp.MAX
                    self._lend(flat)
                    dist.all_reduce(flat, op=op, group=self.group)
                    pieces = flat.split([v.numel() for v in values])
                    joined = [p.view_as(v) for p, v in zip(pieces, values, strict=True)]
                for (s, n), value in zip(chosen, joined, strict=True):
                    cells[s][n] = value.to(cells[s][n].device)


def _uses(tensor: Any) -> int:
    """Return how many hold a tensor."""
    return int(tensor._use_count())


def ranks_of(group: dist.ProcessGroup | bool | None, device: torch.device) -> Ranks | None:
    """Return the ranks of a run, or None for a single process. ``False`` says: this process is alone."""
    if group is False or not dist.is_available() or not dist.is_initialized():
        return None
    chosen = group if isinstance(group, dist.ProcessGroup) else None
    return Ranks(chosen, device) if dist.get_world_size(chosen) > 1 else None
