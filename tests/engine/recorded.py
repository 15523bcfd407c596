"""A stand-in for CUDA graphs on any device: operations are noted as torch dispatches them, and done again.

Like a graph, it knows nothing of Python: numbers are those of the time of recording, and whoever asks a tensor for
its value while recording fails. What does so on a CPU only is `noted` as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
Noted = tuple[Any, tuple[Any, ...], dict[str, Any], Any]


class _Notes(TorchDispatchMode):
    now: ClassVar[_Notes | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Noted] = []
        self._made: set[int] = set()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
            raise RuntimeError(f"{func} waits for the device while it is recorded")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for t in tree_leaves(value):
                    if _place(t) not in self._made:
                        self.before.setdefault(_place(t), (t, t.clone()))
        found = func(*args, **(kwargs or {}))
        self._made.update(
            _place(t) for t in tree_leaves(found) if isinstance(t, Tensor) and not _known(t, args)
        )
        self.noted.append((func, args, kwargs or {}, found))
        return found


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that counts as one operation while it is recorded."""

    def call(*args: Any) -> Any:
        notes = _Notes.now
        if notes is None:
            return function(*args)
        with _disable_current_modes():
            found = function(*args)
        notes.noted.append((function, args, {}, found))
        return found

    return call


def _place(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _known(t: Tensor, args: Any) -> bool:
    return any(isinstance(a, Tensor) and _place(a) == _place(t) for a in tree_leaves(args))


class NotedRecorder:
    """Does what `cockpit.engine.recorder.Recorder` does, on any device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @staticmethod
    def serves(device: torch.device) -> bool:
        return True

    def another(self) -> NotedRecorder:
        return self

    def prepare(self) -> None:
        """Nothing to do."""

    def record(
        self, work: Callable[[], T], generators: Sequence[torch.Generator] = ()
    ) -> tuple[Callable[[], None], T]:
        notes = _Notes.now = _Notes()
        try:
            with torch.no_grad(), notes:
                found = work()
        finally:
            _Notes.now = None
        for t, value in notes.before.values():  # nothing is done while a graph is recorded
            t.copy_(value)
        return lambda: _repeat(notes.noted), found


@torch.no_grad()
def _repeat(noted: list[Noted]) -> None:
    for func, args, kwargs, before in noted:
        found = func(*args, **kwargs)
        for old, new in zip(tree_leaves(before), tree_leaves(found), strict=True):
            if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                old.copy_(new)
