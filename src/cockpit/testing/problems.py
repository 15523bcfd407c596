"""The zoo: every problem by name."""

from __future__ import annotations

from cockpit.testing import (
    attention,
    convolution,
    custom,
    dense,
    norms,
    recurrent,
    several,
    tokens,
    unusual,
)
from cockpit.testing.problem import Problem

FAMILIES = (dense, convolution, norms, tokens, attention, recurrent, custom, several, unusual)


def problems() -> list[Problem]:
    """All problems, family by family.

    >>> len({p.name for p in problems()}) == len(problems())
    True
    """
    return [p for family in FAMILIES for p in family.PROBLEMS]


def problem(name: str) -> Problem:
    """The problem of that name.

    >>> problem("mlp").batch(4)[0][0].shape
    torch.Size([4, 6])
    """
    zoo = {p.name: p for p in problems()}
    if name not in zoo:
        raise KeyError(f"No problem is called {name!r}; there are {', '.join(zoo)}.")
    return zoo[name]
