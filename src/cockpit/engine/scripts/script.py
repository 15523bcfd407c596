"""Script: work on a CPU, noted call by call and repeated without the Python around it.

What a CUDA graph is on a GPU. torch's operations are noted as it dispatches them, kernels in C by `note`, and whatever
looks at values by `noted`, as a whole. Like a graph, a script knows addresses and no Python: what it reads lies where
it lay, views need not be taken again, and each result is written to where it was the first time. So it keeps all of
its memory, and is for small work. What only kernels in C read can be read elsewhere by the next repetition (`feed`).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

T = TypeVar("T")
P = ParamSpec("P")
Feed = Callable[[int], None]
"""Takes the address of what is to be read."""

WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Marks of operations whose outcome Python, or a shape, may depend on."""
EMPTY = {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided"}
CONSTANT = {
    f"aten::{name}{like}"
    for name in (
        "zeros",
        "ones",
        "full",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "eye",
        "scalar_tensor",
    )
    for like in ("", "_like")
}
"""Operations whose results are the same every time, and are there already unless somebody writes into them."""

_here = threading.local()


class Script(TorchDispatchMode):
    """Notes what is done inside the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Callable[[], object]] = []
        self._kept: list[Any] = []
        """What the calls read and write, lest its memory be given to somebody else."""
        self._made: set[int] = set()
        self._constant: dict[int, int] = {}
        """Memory of constants, and the call that makes each."""
        self._overwritten: set[int] = set()
        self._before: list[tuple[Tensor, Tensor]] = []
        """Of what was there before and is written into: its numbers."""
        self._fixed: set[int] = set()
        """Memory whose address not only kernels know."""
        self._pointers: dict[int, list[tuple[Any, int | None, int]]] = {}
        """By memory, where kernels are told of it: an argument, the place in it if it is an array, and an offset."""

    def __enter__(self) -> Script:
        _here.script = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _here.script = None
        spared = {call for memory, call in self._constant.items() if memory not in self._overwritten}
        self._calls = [call for k, call in enumerate(self._calls) if k not in spared]
        for place, value in reversed(self._before):
            place.copy_(value)  # nothing has been done yet
        self._before.clear()

    @property
    def size(self) -> int:
        """How many bytes it keeps of what it made."""
        kept = {_memory(t): t.untyped_storage().nbytes() for t in tree_leaves(self._kept) if _is_here(t)}
        return sum(size for memory, size in kept.items() if memory in self._made)

    def repeat(self) -> None:
        """Do all of it again."""
        with nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            for call in self._calls:
                call()

    def feed(self, place: Tensor) -> Feed | None:
        """Return what lets repetitions read a tensor elsewhere, laid out like this one; None: not only kernels do."""
        memory = _memory(place)
        if memory in self._fixed or memory in self._made:
            return None
        return partial(_point, self._pointers.get(memory, []))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, and take note of it."""
        name, kwargs = func._schema.name, kwargs or {}
        if _waits(func, args):
            raise RuntimeError(f"{name} waits for values that are not known while a script is written")
        written = _written(func, args, kwargs)
        self.overwrite(written)
        found = func(*args, **kwargs)
        fresh = self._fresh(tree_leaves(found), tree_leaves((args, kwargs)))
        self._kept.append((args, kwargs, found))
        if fresh or written:
            self.fix((args, kwargs))
        if fresh and name in CONSTANT:
            self._constant[_memory(found)] = len(self._calls)
        if name == "aten::_to_copy" and fresh:
            self._calls.append(partial(found.copy_, args[0]))
        elif fresh and not written and (direct := _into(func, fresh)) is not None and found is fresh[0]:
            self._calls.append(partial(direct, *args, **kwargs, out=found))
        elif fresh and name not in EMPTY:
            self._calls.append(partial(_again, partial(func, *args, **kwargs), tree_leaves(found), fresh))
        elif written:
            self._calls.append(partial(func, *args, **kwargs))
        return found

    def overwrite(self, tensors: Iterable[Tensor]) -> None:
        """Take note that tensors are going to be written into."""
        for t in tensors:
            self._overwritten.add(_memory(t))
            self._fixed.add(_memory(t))
            if _memory(t) not in self._made:
                self._before.append((t, t.clone()))

    def add(self, call: Callable[[], object], kept: object, written: Iterable[Tensor]) -> None:
        """Take note of a call; ``kept`` is what it reads and writes, and of that ``written`` what it may write into."""
        self._calls.append(call)
        self._kept.append(kept)
        self._overwritten.update(map(_memory, written))

    def point(self, arguments: Sequence[Any], kept: object) -> None:
        """Take note of how a kernel is told of tensors."""
        pointers: list[tuple[Any, int | None, int]] = []
        for a in arguments:
            if isinstance(a, ctypes.c_void_p):
                pointers.append((a, None, a.value or 0))
            elif isinstance(a, ctypes.Array) and a._type_ is ctypes.c_void_p:
                pointers += [(a, k, address or 0) for k, address in enumerate(a)]
        for t in _tensors(kept):
            memory, size = _memory(t), t.untyped_storage().nbytes()
            found = [
                (a, k, address - memory) for a, k, address in pointers if memory <= address < memory + size
            ]
            if not found:
                self._fixed.add(memory)
            self._pointers[memory] = [*self._pointers.get(memory, ()), *found]

    def fix(self, tree: object) -> None:
        """Take note that somebody knows tensors who cannot be told of others."""
        self._fixed.update(map(_memory, _tensors(tree)))

    def _fresh(self, found: Sequence[object], given: Sequence[object]) -> list[Tensor]:
        """Return the results on this device that are no views of what was given."""
        there = {_memory(t) for t in given if isinstance(t, Tensor)}
        fresh = [t for t in found if _is_here(t) and t.numel() and _memory(t) not in there]
        self._made.update(map(_memory, fresh))
        return fresh


def note(function: Callable[..., object], *args: Any, kept: object, written: Sequence[Tensor] = ()) -> None:
    """Take note of a kernel's call that is about to be made, if a script is being written.

    ``kept`` are the tensors it reads and writes, ``written`` those of them that were there before.
    """
    script: Script | None = getattr(_here, "script", None)
    if script is not None:
        with _disable_current_modes():
            script.overwrite(written)
        script.add(partial(function, *args), (args, kept), _tensors(kept))
        script.point(args, kept)


def writing() -> bool:
    """Say whether a script is being written."""
    return getattr(_here, "script", None) is not None


def noted(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function of which, while a script is written, one note is taken: its results must be tensors."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        script: Script | None = getattr(_here, "script", None)
        if script is None:
            return function(*args, **kwargs)
        _here.script = None
        try:
            with _disable_current_modes():
                found = function(*args, **kwargs)
        finally:
            _here.script = script
        results = _tensors(found)
        if results:
            script.fix((args, kwargs))
            again = partial(_again, partial(function, *args, **kwargs), results, results)
            script._made.update(map(_memory, results))
            script.add(again, (args, kwargs, found), results)
        return found

    return call


def _again(call: Callable[[], object], places: Sequence[object], fresh: Sequence[Tensor]) -> None:
    """Call, and copy the results to where they were the first time."""
    wanted = set(map(id, fresh))
    for place, value in zip(places, tree_leaves(call()), strict=True):
        if id(place) in wanted and isinstance(place, Tensor):
            place.copy_(value)


def _waits(func: Any, args: Sequence[Any]) -> bool:
    if func._schema.name == "aten::index":  # by numbers it is an operation like any other
        return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return not WAITING.isdisjoint(func.tags)


def _point(pointers: Sequence[tuple[Any, int | None, int]], address: int) -> None:
    for argument, k, offset in pointers:
        if k is None:
            argument.value = address + offset
        else:
            argument[k] = address + offset


def _tensors(tree: object) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _is_here(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.device.type == "cpu"


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation writes into."""
    found: list[Any] = []
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tree_leaves(args[k] if k < len(args) else kwargs.get(argument.name))
    return [t for t in found if isinstance(t, Tensor)]


def _into(func: Any, results: Sequence[Tensor]) -> Callable[..., object] | None:
    """Return the same operation that writes its only result to a given place, if there is one."""
    if len(results) != 1 or len(func._schema.returns) != 1:
        return None
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for overload in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, overload)
        given = [(a.name, str(a.type)) for a in other._schema.arguments]
        if given == [*wanted, ("out", "Tensor")]:
            found: Callable[..., object] = other._op
            return found
    return None
