"""What the operations of a graph have saved for their derivatives, and fixed places for it.

All that a derivative depends on is what its operations saved. Two graphs of the same `form` (the same operations with
the same settings, on tensors of the same shapes) differ in the saved numbers alone: what was recorded on one of them
with its saved tensors in fixed `Places` is repeated for another by copying that one's there. Parameters lie where they
lie, and what was saved of them is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from cockpit.engine.derivatives.walked import function_of
from cockpit.engine.scripts.copying import Copier

RAW, NUMBER = "_raw_saved_", "_saved_"
BY_PYTHON = RAW + "tensors"
"""Where nodes written in Python keep theirs."""
LEAF = "torch::autograd::AccumulateGrad"
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
"""By operation, where its nodes keep tensors, and where numbers."""


@dataclass(frozen=True, eq=False)
class Saved:
    """The saved tensors of a graph that are no parameters'."""

    form: tuple[Any, ...]
    """Equal for graphs that differ in the numbers of `tensors` alone."""
    tensors: list[Tensor]
    """At the end those that belong to it as well."""
    slots: list[Any]
    """Where the others are saved."""
    nodes: Sequence[tuple[Node, str]] = ()
    """Which own the slots: without them these would lead nowhere."""

    @property
    def size(self) -> int:
        """How many bytes they occupy."""
        return sum({t.data_ptr(): t.numel() * t.element_size() for t in self.tensors}.values())


def saved(losses: Tensor, more: Sequence[Tensor] = ()) -> Saved:
    """Read what the graph of some losses has saved; ``more`` are tensors that belong to it as well."""
    nodes, form = _nodes(losses)
    variables = [_variable(node) for node, name in nodes if name == LEAF]
    addresses = [v.data_ptr() for v in variables]
    form += [*map(id, variables), *addresses]
    reading = _Reading(losses.device, set(addresses), form)
    for node, name in nodes:
        raw, plain = _attributes(node, name)
        form += [getattr(node, x) for x in plain]
        for x in raw:
            found = getattr(node, x)
            for slot in found if isinstance(found, tuple | list) else (found,):
                reading.note(slot)
    for t in more:
        if t.device != losses.device:
            raise RuntimeError(f"a tensor that belongs to the graph lies on {t.device}")
        form.append(_shape(t))
    return Saved(tuple(form), [*reading.tensors, *more], reading.slots, nodes)


def is_packed(losses: Tensor) -> bool:
    """Say whether the user's code packs what the graph of some losses has saved; each look would unpack it anew."""
    for node, name in _nodes(losses)[0]:
        raw = (BY_PYTHON,) if isinstance(node, BackwardCFunction) else _attributes(node, name)[0]
        kept = [getattr(node, x) for x in raw]
        slots = [s for x in kept for s in (x if isinstance(x, tuple | list) else (x,))]
        if any(slot.unpack_hook is not None for slot in slots):
            return True
    return False


def insist_unchanged(found: Saved) -> None:
    """Raise torch's own error if a tensor was changed in place since it was saved."""
    for node, name in found.nodes:
        for x in _attributes(node, name)[0]:
            getattr(node, "saved_tensors" if x == BY_PYTHON else x.replace(RAW, NUMBER))


def _variable(node: Any) -> Tensor:
    variable: Tensor = node.variable
    return variable


class _Reading:
    """A graph on its way to be `Saved`; ``fixed`` is the memory of parameters."""

    def __init__(self, device: torch.device, fixed: set[int], form: list[Any]) -> None:
        self.device, self.fixed, self.form = device, fixed, form
        self.tensors: list[Tensor] = []
        self.slots: list[Any] = []

    def note(self, slot: Any) -> None:
        """Take note of one saved tensor."""
        if slot.unpack_hook is not None:
            raise RuntimeError("a saved tensor is packed by the user's code")
        t = slot.data
        if t is None:
            self.form.append(None)
            return
        if type(t) not in (Tensor, torch.nn.Parameter) or t.layout is not torch.strided:
            raise RuntimeError(f"a saved tensor is a {type(t).__name__}")
        self.form.append(_shape(t))
        if (address := t.data_ptr()) in self.fixed:  # (a view that begins elsewhere is copied like any other)
            self.form.append(address)
        elif t.device == self.device:
            self.tensors.append(t)
            self.slots.append(slot)
        elif t.device.type == "cpu" and t.numel() == 1:
            self.form.append(t.item())  # a number of the operation, like its settings
        else:
            raise RuntimeError(f"a saved tensor lies on {t.device}")


def _shape(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.device


def _nodes(losses: Tensor) -> tuple[list[tuple[Node, str]], list[Any]]:
    """Return the nodes of a graph and their names, in an order that depends on its form alone, and how they hang."""
    start = losses.grad_fn
    if start is None:
        return [], []
    found, form, waiting = list[tuple[Node, str]](), list[Any](), [start]
    numbers: dict[Node | None, int] = {None: -1, start: 0}
    while waiting:
        node = waiting.pop()
        name = node.name()
        found.append((node, name))
        form.append(name)
        for behind, place in node.next_functions:
            number = numbers.get(behind)
            if number is None and behind is not None:
                number = numbers[behind] = len(numbers)
                waiting.append(behind)
            form += (number, place)
    return found, form


def _attributes(node: Node, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return where a node keeps tensors, and where numbers."""
    if isinstance(node, BackwardCFunction):
        return (BY_PYTHON,), ("_forward_cls", *function_of(node).settings)
    if (found := _ATTRIBUTES.get(name)) is not None:
        return found
    known = sorted(dir(node))
    raw = tuple(x for x in known if x.startswith(RAW))
    tensors = {x.replace(RAW, NUMBER) for x in raw}
    _ATTRIBUTES[name] = raw, tuple(x for x in known if x.startswith(NUMBER) and x not in tensors)
    return _ATTRIBUTES[name]


class Places:
    """Fixed places for the tensors of a graph."""

    @torch.no_grad()
    def __init__(self, found: Saved) -> None:
        insist_unchanged(found)
        first: dict[tuple[Any, ...], int] = {}
        keys = [(t.data_ptr(), *_shape(t)) for t in found.tensors]
        self._same = [first.setdefault(key, k) for k, key in enumerate(keys)]
        """Of each tensor the first one that is the same."""
        self._own = sorted(set(self._same))
        self.form = found.form
        cores = {k: _core(found.tensors[k]) for k in self._own}
        self._cores = {k: torch.empty_like(core) for k, core in cores.items()}
        self._filled = self._own
        self._copier = Copier(list(self._cores.values()))
        tensors = [
            self._cores[same].expand(t.shape) for same, t in zip(self._same, found.tensors, strict=True)
        ]
        self.more = tensors[len(found.slots) :]
        """The places of those that belong to the graph as well."""
        self._taken = False
        for slot, t, place in zip(found.slots, found.tensors, tensors, strict=False):
            self._replace(slot, t, place)

    def _replace(self, slot: Any, t: Tensor, place: Tensor) -> None:
        """Let a slot give out its place while places are `taken`, and what was saved otherwise."""
        version = t._version

        def unpack(original: Tensor) -> Tensor:
            if self._taken:
                return place
            if original._version != version:  # torch no longer looks for itself
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: [{original.type()} {list(original.shape)}] is at version {original._version}; "
                    f"expected version {version} instead"
                )
            return original

        slot.register_hooks(lambda original: original, unpack)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Let the operations find the places, inside the block, for what they saved."""
        self._taken = True
        try:
            yield
        finally:
            self._taken = False

    def fits(self, found: Saved) -> bool:
        """Say whether what another graph saved may be copied here."""
        if found.form != self.form:
            return False
        there = [t.data_ptr() for t in found.tensors]
        return all(there[k] == there[same] for k, same in enumerate(self._same))

    def narrow(self, read: Callable[[Tensor], bool]) -> None:
        """Fill no places from now on but those that are read."""
        self._filled = [k for k in self._own if read(self._cores[k])]
        self._copier = Copier([self._cores[k] for k in self._filled])

    @torch.no_grad()
    def fill(self, found: Saved) -> None:
        """Copy what another graph saved."""
        self._copier.copy([_core(found.tensors[k]) for k in self._filled])


def _core(t: Tensor) -> Tensor:
    """Return a tensor without its repetitions."""
    if 0 not in t.stride():
        return t
    sizes = [1 if stride == 0 else size for size, stride in zip(t.shape, t.stride(), strict=True)]
    return t.as_strided(sizes, t.stride())


def stand_in(t: Tensor, place: Tensor) -> Tensor:
    """Return a tensor at the same place of the graph whose numbers lie in ``place``."""
    with torch.enable_grad():
        node: Any = t.sin().grad_fn  # any operation that saves what it is applied to
    node._raw_saved_self.register_hooks(lambda _: place, lambda kept: kept)
    found: Tensor = node._saved_self
    return found
