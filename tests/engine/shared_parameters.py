"""Models with parameters that all examples share: positions and tokens, and some that only look like it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from layer_check import normal

LENGTH, WIDTH = 3, 4


class Positions(nn.Module):
    """A table of positions, looked up for all sequences together."""

    def __init__(self, lead: int = 0) -> None:
        super().__init__()
        self.table, self.head, self.lead = nn.Embedding(LENGTH, WIDTH), nn.Linear(WIDTH, 2), lead

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(LENGTH).view(*[1] * self.lead, LENGTH)
        return self.head(torch.tanh(x + self.table(places)))


class Raw(nn.Module):
    """A parameter of positions, added to every sequence."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(normal(*shape, seed=5).float()), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table + x))


class Token(nn.Module):
    """A token of its own in front of every sequence, and positions in place."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(normal(1, 1, WIDTH, seed=6).float())
        self.table, self.head = nn.Parameter(normal(LENGTH + 1, WIDTH, seed=7).float()), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x + self.table.unsqueeze(0)
        return self.head(torch.tanh(x))


class Twice(Raw):
    """Positions that are added before and behind the activation."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table + x) + self.table)


class Scale(Raw):
    """Positions that are multiplied by: no sum."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table * x))


SHARED: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "a table": (Positions, {"table.weight"}),
    "a table, looked up once more": (lambda: Positions(1), {"table.weight"}),
    "a parameter": (lambda: Raw(LENGTH, WIDTH), {"table"}),
    "a parameter with an axis for the examples": (lambda: Raw(1, LENGTH, WIDTH), {"table"}),
    "one number for each position": (lambda: Raw(LENGTH, 1), {"table"}),
    "one for each feature": (lambda: Raw(WIDTH), {"table"}),
    "a token": (Token, {"token", "table"}),
    "twice": (lambda: Twice(LENGTH, WIDTH), set()),
    "a factor": (lambda: Scale(LENGTH, WIDTH), set()),
}
