"""Notes of a script: what each call reads and writes, and which of them have to be repeated at all.

A call is repeated if somebody may look at what it writes, or a later call that is repeated does, and if what it writes
may be other than the first time. Memory is told apart by its address: while a script is written all of it is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")
Pointer = tuple[Any, int | None, int]
"""Where a kernel is told of memory: an argument, the place in it if it is an array, and an offset."""


@dataclass(eq=False)
class Note:
    """One call.

    Attributes:
        call: does it again.
        kept: what it reads and writes, lest its memory be given to somebody else. Tensors in it are `own` ones.
        reads: memory whose numbers it may read.
        writes: memory that it may write into.
        settled: whether what it writes follows from what it reads, and all of it is written.
        draws: whether it draws random numbers: others of the same generator come behind them.
        fixed: memory whose address it knows for good.
        pointers: by memory, where it can be told of another.
    """

    call: Callable[[], object]
    kept: object
    reads: Collection[int]
    writes: Collection[int]
    settled: bool = False
    draws: bool = False
    fixed: Collection[int] = ()
    pointers: dict[int, list[Pointer]] = field(default_factory=dict)


def repeated(notes: Sequence[Note], made: Collection[int]) -> list[Note]:
    """Return the calls to repeat, in their order; ``made`` is the memory that they were the first to use."""
    wanted = _outside(notes, made)
    constant = _constant(notes, made) - wanted  # what others hold they may have changed
    found: list[Note] = []
    for note in reversed(notes):
        idle = wanted.isdisjoint(note.writes) or constant.issuperset(note.writes)
        if idle and not note.draws:
            continue
        wanted.update(note.reads, note.writes)  # a write may be one of a part
        found.append(note)
    return found[::-1]


def _constant(notes: Sequence[Note], made: Collection[int]) -> set[int]:
    """Return the memory that is written once, from nothing that changes."""
    writers = Counter(memory for note in notes for memory in note.writes)
    found: set[int] = set()
    for note in notes:
        if note.settled and found.issuperset(note.reads):
            found.update(m for m in note.writes if m in made and writers[m] == 1)
    return found


def _outside(notes: Iterable[Note], made: Collection[int]) -> set[int]:
    """Return the memory that somebody else may look at: all that was there before, and what others hold as well."""
    held = {id(t): t for note in notes for t in tensors_in(note.kept)}
    ours = Counter(map(memory_of, held.values()))
    found = {m for note in notes for m in note.writes if m not in made}
    for t in held.values():
        storage = t.untyped_storage()  # (this object counts as well)
        if torch._C._storage_Use_Count(storage._cdata) > ours[memory_of(t)] + 1:
            found.add(memory_of(t))
    return found


def own(tree: T) -> T:
    """Return the same with tensors that nobody else holds, of the same memory: so it is seen who else holds that."""
    found: T = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)
    return found


def tensors_in(tree: object) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def memory_of(t: Tensor) -> int:
    """Return what tells a tensor's memory from others'."""
    return t.untyped_storage().data_ptr()
