"""Hooks of the user's on tensors: what changes gradients on their way back, where nobody can ask a graph for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_own = 0
"""How many blocks are open whose hooks are ours."""
_looking: list[Hooks] = []
"""Who looks at the moment; while nobody does, torch is as it was."""
_register: Any = Tensor.register_hook


@contextmanager
def own_hooks() -> Iterator[None]:
    """Let hooks that are registered inside the block be no user's."""
    global _own
    _own += 1
    try:
        yield
    finally:
        _own -= 1


def register_own(tensor: Tensor, hook: Any) -> None:
    """Register a hook that is no user's."""
    _register(tensor, hook)


def _noticed(tensor: Tensor, hook: Any) -> Any:
    """Register a hook, and tell whoever looks."""
    if not _own:
        for hooks in _looking:
            hooks.seen = True
    return _register(tensor, hook)


class Hooks:
    """Whether the user has registered hooks on tensors since it was begun to look."""

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Look, inside the block, who registers hooks."""
        self.seen = False
        _looking.append(self)
        Tensor.register_hook = _noticed  # type: ignore[method-assign]
        try:
            yield
        finally:
            _looking.remove(self)
            if not _looking:
                Tensor.register_hook = _register  # type: ignore[method-assign]

    def on(self, parameters: Iterable[Tensor]) -> bool:
        """Say whether there are any, of this forward pass or on parameters."""
        return self.seen or any(p._backward_hooks for p in parameters)
