"""Script: work on a CPU, noted call by call and repeated without the Python around it.

What a CUDA graph is on a GPU. torch's operations are noted as it dispatches them, kernels in C by `note`, and whatever
looks at values by `noted`, as a whole. Like a graph, a script knows addresses and no Python: what it reads lies where
it lay, views need not be taken again, and each result is written to where it was the first time. So it keeps all of
its memory, and is for small work. What only kernels in C read can be read elsewhere by the next repetition (`feed`).
Calls that make what nobody reads, or what is the same every time, are left out (`cockpit.engine.scripts.notes`).
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

from cockpit.engine.scripts.notes import Note, Pointer, memory_of, own, repeated, tensors_in

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
    """Notes what is done inside the block; it can be repeated when it is `settled`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes: list[Note] = []
        self._calls: list[Callable[[], object]] = []
        self._kept: list[Any] = []
        """All tensors that came, lest memory be given to somebody else while it is written."""
        self._made: set[int] = set()
        self._before: list[tuple[Tensor, Tensor]] = []
        """Of what was there before and is written into: its numbers."""
        self._overwritten: set[int] = set()
        self._written: set[int] = set()
        """All memory that has been written into."""

    def __enter__(self) -> Script:
        _here.script = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _here.script = None
        for place, value in reversed(self._before):
            place.copy_(value)  # nothing has been done yet
        self._before.clear()

    def settle(self) -> None:
        """Decide what is to be repeated, when its results are in the hands of those who read them."""
        self._kept.clear()
        self._notes = repeated(self._notes, self._made)
        self._calls = [note.call for note in self._notes]

    @property
    def size(self) -> int:
        """How many bytes it keeps of what it made."""
        held = [t for note in self._notes for t in tensors_in(note.kept)]
        kept = {memory_of(t): t.untyped_storage().nbytes() for t in held if t.is_cpu}
        return sum(size for memory, size in kept.items() if memory in self._made)

    def repeat(self) -> None:
        """Do all of it again."""
        with nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            for call in self._calls:
                call()

    def reads(self, place: Tensor) -> bool:
        """Say whether a tensor's numbers make a difference."""
        return any(memory_of(place) in note.reads for note in self._notes)

    def feed(self, place: Tensor) -> Feed | None:
        """Return what lets repetitions read a tensor elsewhere, laid out like this one; None: not only kernels do."""
        memory = memory_of(place)
        if memory in self._made or memory in self._overwritten:
            return None
        if any(memory in note.fixed for note in self._notes):
            return None
        return partial(_point, [p for note in self._notes for p in note.pointers.get(memory, ())])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, and take note of it."""
        name, kwargs = func._schema.name, kwargs or {}
        if _waits(func, args):
            raise RuntimeError(f"{name} waits for values that are not known while a script is written")
        written = _written(func, args, kwargs)
        self.overwrite(written)
        found = func(*args, **kwargs)
        given = {memory_of(t) for t in tensors_in((args, kwargs))}
        fresh = self._fresh(tree_leaves(found), given)
        self._kept.append((args, kwargs, found))
        args, kwargs, places = own((args, kwargs, found))
        call: Callable[[], object]
        if name == "aten::_to_copy" and fresh:
            call = partial(places.copy_, args[0])
        elif fresh and not written and (direct := _into(func, fresh)) is not None and found is fresh[0]:
            call = partial(direct, *args, **kwargs, out=places)
        elif fresh and name not in EMPTY:
            new, pairs = set(map(id, fresh)), zip(tree_leaves(found), tree_leaves(places), strict=True)
            to = [place if id(result) in new else None for result, place in pairs]
            call = partial(_again, partial(func, *args, **kwargs), to)
        elif written:
            call = partial(func, *args, **kwargs)
        else:
            return found
        draws = torch.Tag.nondeterministic_seeded in func.tags
        self.add(
            Note(
                call,
                (args, kwargs, places),
                reads=() if name in CONSTANT or _is_one(name, args) else given,
                writes={memory_of(t) for t in (*fresh, *written)},
                settled=not written and not draws,
                draws=draws,
                fixed=given,
            )
        )
        return found

    def overwrite(self, tensors: Iterable[Tensor]) -> None:
        """Take note that tensors are going to be written into."""
        for t in tensors:
            if (memory := memory_of(t)) not in self._made:
                self._overwritten.add(memory)
                self._before.append((t, t.clone()))

    def add(self, note: Note) -> None:
        """Take note of a call."""
        self._notes.append(note)
        self._written.update(note.writes)

    def kernel(
        self, call: Callable[[], object], arguments: Sequence[Any], kept: object, written: Iterable[Tensor]
    ) -> None:
        """Take note of a kernel's call, as `note` says."""
        self.overwrite(written)
        told: list[Pointer] = []
        for a in arguments:
            if isinstance(a, ctypes.c_void_p):
                told.append((a, None, a.value or 0))
            elif isinstance(a, ctypes.Array) and a._type_ is ctypes.c_void_p:
                told += [(a, k, address or 0) for k, address in enumerate(a)]
        pointers: dict[int, list[Pointer]] = {}
        for t in tensors_in(kept):
            memory, end = memory_of(t), memory_of(t) + t.untyped_storage().nbytes()
            pointers[memory] = [(a, k, at - memory) for a, k, at in told if memory <= at < end]
        writes = {m for m in pointers if m in self._made and m not in self._written}
        writes.update(map(memory_of, written))
        fixed = {m for m, found in pointers.items() if not found}
        self.add(Note(call, own(kept), pointers, writes, fixed=fixed, pointers=pointers))

    def results(self, call: Callable[[], object], given: object, found: object) -> None:
        """Take note of a call that looks at values; its results must be tensors."""
        results = tensors_in(found)
        self._made.update(map(memory_of, results))
        if results:
            reads, writes = ({memory_of(t) for t in tensors_in(x)} for x in (given, found))
            to = own(results)  # (what was given the call itself holds: whoever else does cannot be told)
            self.add(Note(partial(_again, call, to), to, reads, writes, fixed=reads))

    def _fresh(self, found: Sequence[object], given: Iterable[int]) -> list[Tensor]:
        """Return the results on this device that are no views of what was given."""
        fresh = [t for t in found if _is_here(t) and t.numel() and memory_of(t) not in given]
        self._made.update(map(memory_of, fresh))
        return fresh


def note(function: Callable[..., object], *args: Any, kept: object, written: Sequence[Tensor] = ()) -> None:
    """Take note of a kernel's call that is about to be made, if a script is being written.

    ``kept`` are the tensors it reads and writes, ``written`` those it writes into though they had numbers before.
    """
    script: Script | None = getattr(_here, "script", None)
    if script is not None:
        with _disable_current_modes():
            script.kernel(partial(function, *args), args, kept, written)


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
        with _disable_current_modes():
            script.results(partial(function, *args, **kwargs), (args, kwargs), found)
        return found

    return call


def _again(call: Callable[[], object], places: Sequence[Tensor | None]) -> None:
    """Call, and copy the results to where they were the first time."""
    for place, value in zip(places, tree_leaves(call()), strict=True):
        if place is not None:
            place.copy_(value)


def _is_one(name: str, args: Sequence[Any]) -> bool:
    """Say whether an operation raises numbers to the power of 0, as the second derivative of a square does."""
    return name == "aten::pow" and not isinstance(args[1], Tensor) and args[1] == 0


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


def _is_here(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.device.type == "cpu"


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
