"""Capture: sees layers on their way forward and gradients on their way back; the only file with hooks.

A forward hook on every layer that has a formula keeps the layer's inputs with a hook on its output tensor.
(Module backward hooks fail after in-place operations; tensor hooks do not.) Going back, the output gradients are
handed to whoever `receive`s at that moment, and to nobody otherwise: tensor hooks also fire for
``autograd.grad`` and for evaluation passes of the user's own.

The kept inputs are owned by the autograd graph (through the hook), never by us: when the graph dies, so do they.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from cockpit.engine.hooks import own_hooks, register_own
from cockpit.engine.layers.formula import Call, Formula, Layout, Observer, Replay, formula_for
from cockpit.engine.meter import Meter

MARK = "cockpit.calls"
"""Under this name a node of the autograd graph keeps which calls of layers it made outputs of."""
Receiver = Callable[["Use", tuple[Tensor | None, ...]], None]


class Use:
    """One forward call of a layer, waiting for its output gradients."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        formula: Formula,
        args: Any,
        kwargs: Any,
        outputs: list[Tensor],
        moving: frozenset[int],
    ) -> None:
        self.name, self.module, self.formula = name, module, formula
        self.args: tuple[Any, ...]
        self.kwargs: Mapping[str, Any]
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # the usual case, without a tree
            self.args, self.kwargs = (_kept(moving, args[0]),), kwargs
            self.inputs: list[Tensor] = [self.args[0]]
        else:
            self.args = tree_map(partial(_kept, moving), args)
            self.kwargs = tree_map(partial(_kept, moving), kwargs)
            self.inputs = _tensors((self.args, self.kwargs))
        self.shapes = tuple([t.shape for t in outputs])
        self.versions = [t._version for t in self.inputs]
        self.refused = formula.refuses(module, self.args, self.kwargs)
        self.replay: Replay | None = None
        self.observed: list[Tensor] = []
        self.key = (name, tuple([len(shape) for shape in self.shapes]))

    def candidates(self, examples: int) -> list[tuple[Layout, ...]]:
        """Return the ways the examples may lie in this call's outputs."""
        outputs = tuple(torch.empty(shape, device="meta") for shape in self.shapes)
        return self.formula.candidates(self.module, outputs, examples)

    def call(
        self,
        grads: tuple[Tensor | None, ...],
        examples: int,
        layouts: tuple[Layout, ...],
        keep: Tensor | None = None,
    ) -> Call:
        """Return the call as formulas see it."""
        seen = tuple(self.observed)
        return Call(self.module, self.args, self.kwargs, grads, examples, layouts, keep, self.replay, seen)

    def observe(self, found: list[Tensor] | str) -> None:
        """Take what an observer saw of the call, or why it is beyond its formula."""
        if isinstance(found, str):
            self.refused = self.refused or found
        else:
            self.observed = found
            self.inputs = [*self.inputs, *found]
            self.renew()

    def at(self, places: list[Tensor]) -> Use:
        """Return the same call with its inputs in other places."""
        use = copy(self)
        there = {id(x): place for x, place in zip(self.inputs, places, strict=True)}
        use.args = tree_map(lambda leaf: there.get(id(leaf), leaf), self.args)
        use.kwargs = tree_map(lambda leaf: there.get(id(leaf), leaf), self.kwargs)
        use.observed = [there[id(x)] for x in self.observed]
        use.inputs = places
        use.renew()
        return use

    def renew(self) -> None:
        """Take the inputs as they are now for what the layer saw."""
        self.versions = [t._version for t in self.inputs]

    def release(self) -> None:
        """Let go of the inputs: nobody will ask for them any more, though the graph may live on."""
        self.args, self.kwargs, self.inputs, self.observed, self.versions = (), {}, [], [], []

    def intact(self) -> bool:
        """Say whether the kept inputs are still what the layer saw (nobody wrote into them since)."""
        return [t._version for t in self.inputs] == self.versions


class Hook:
    """A hook on one layer. A copy or a pickle of a watched model carries one of the standard library's instead.

    (Models are copied and saved in mid-training, and what comes out must not know of us.)
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        """Pass on what the layer saw."""
        self._call(*args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return nullcontext().__exit__  # takes anything, does nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Capture:
    """Hooks on a model's layers, present only while armed."""

    def __init__(self, model: nn.Module, root: nn.Module | None = None) -> None:
        self._model, self._called = model, root or model
        self._handles: list[RemovableHandle] = []
        self._uses: list[weakref.ref[Use]] = []
        self._receiver: Receiver | None = None
        self._replays: dict[str, list[Replay]] = {}
        self._kept: dict[str, Tensor | None] = {}
        """What observers need from before calls that are on their way."""
        self.outputs: list[Tensor] = []
        self.keep_outputs = False
        self.on_outputs: Callable[[list[Tensor], int], None] | None = None
        self.examples = 0
        self._moving: frozenset[int] = frozenset()
        self._early: list[tuple[Use, tuple[Tensor | None, ...]]] | None = None
        self.failure: BaseException | None = None
        self.meter = Meter()

    @property
    def listening(self) -> bool:
        """Whether somebody receives gradients at the moment; if not, the pass is one of our own, or nobody's."""
        return self._receiver is not None

    @property
    def armed(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._handles)

    def arm(self) -> None:
        """Place the hooks (idempotent)."""
        if self.armed:
            return
        self._moving = frozenset(p.untyped_storage().data_ptr() for p in self._model.parameters())
        for name, module in self._model.named_modules():
            formula = formula_for(module)
            if formula is None or not any(p.requires_grad for p in module.parameters()):
                continue
            if formula.replays(module):
                before = Hook(partial(self._before, name))
                self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            if formula.observer is not None and formula.observer.wants(module):
                observe = Hook(partial(self._observe, name, formula.observer))
                self._handles.append(module.register_forward_pre_hook(observe, with_kwargs=True))
            hook = Hook(partial(self._forward, name, formula))
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        self._handles.append(self._called.register_forward_hook(Hook(self._root), with_kwargs=True))

    def disarm(self) -> None:
        """Remove every hook and forget what was seen."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.forget()

    def close(self) -> None:
        """Remove every trace."""
        self.disarm()
        for module in self._model.modules():
            formula = formula_for(module)
            if formula is not None and formula.observer is not None:
                formula.observer.forget(module)

    def forget(self) -> None:
        """Forget the calls seen so far (their graphs keep what they need)."""
        self._uses.clear()
        self._replays.clear()
        self._kept.clear()
        self.outputs.clear()
        self.failure = None
        self._early = None

    def signature(self) -> tuple[Any, ...]:
        """Describe the forward pass: which layers were called, in which shape classes, in which mode."""
        return tuple((*use.key, use.module.training, use.refused) for use in self.uses())

    def uses(self) -> list[Use]:
        """Return the calls whose graphs are alive, in forward order."""
        return [use for ref in self._uses if (use := ref()) is not None]

    def numbered(self) -> list[tuple[Use, int]]:
        """Return the calls with their number among the calls of the same layer in the same shape class."""
        counts: dict[tuple[object, ...], int] = {}
        numbered = []
        for use in self.uses():
            counts[use.key] = counts.get(use.key, -1) + 1
            numbered.append((use, counts[use.key]))
        return numbered

    @contextmanager
    def receive(self, receiver: Receiver | None) -> Iterator[None]:
        """Hand output gradients to ``receiver(use, grads)`` inside the block, or (None) to nobody."""
        before, self._receiver = self._receiver, receiver
        try:
            yield
        finally:
            self._receiver = before

    def expect(self) -> None:
        """Keep output gradients that come before there is a receiver: a pass we notice only as it runs."""
        self._early = []

    def early(self) -> list[tuple[Use, tuple[Tensor | None, ...]]]:
        """Return what came early, and keep nothing more."""
        found, self._early = self._early or [], None
        return found

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = _tensors((args, kwargs))
        if torch.is_grad_enabled() and tensors:
            self._replays.setdefault(name, []).append(Replay.now(tensors[0].device))

    def _observe(self, name: str, observer: Observer, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            try:
                with self.meter:
                    self._kept[name] = observer.before(module)
            except Exception as failure:  # watching must never break a forward pass
                self.failure = failure

    def _forward(
        self, name: str, formula: Formula, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        found = (output,) if isinstance(output, Tensor) else _tensors(output)
        outputs = [t for t in found if t.requires_grad]
        if not outputs or not torch.is_grad_enabled():
            return
        try:
            with self.meter:
                use = Use(name, module, formula, args, kwargs, outputs, self._moving)
                states = self._replays.pop(name, None)
                use.replay = states[-1] if states else None
                if name in self._kept and formula.observer is not None:
                    use.observe(_seen(formula.observer, module, self._kept.pop(name), outputs))
                self._uses.append(weakref.ref(use))
                if self.keep_outputs:
                    _mark(use, outputs)
                if len(outputs) == 1:
                    register_own(outputs[0], partial(self._one, use))
                else:
                    with own_hooks():
                        torch.autograd.graph.register_multi_grad_hook(outputs, partial(self._all, use))
        except Exception as failure:  # nor must this
            self.failure = failure

    def _root(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found = (output,) if isinstance(output, Tensor) else _tensors(output)
        tensors = [t for t in found if t.requires_grad and t.is_floating_point()]
        if tensors and torch.is_grad_enabled():
            inputs = args if args and isinstance(args[0], Tensor) else _tensors((args, kwargs))
            self.examples = next((t.shape[0] for t in inputs if isinstance(t, Tensor) and t.ndim > 0), 0)
            if self.keep_outputs:  # the only tensors we hold ourselves; the newest calls are enough
                self.outputs = [*self.outputs, *tensors][-4 * len(tensors) :]
            if self.on_outputs is not None:
                try:
                    self.on_outputs(tensors, self.examples)
                except Exception as failure:
                    self.failure = failure

    def _one(self, use: Use, grad: Tensor) -> None:
        self._all(use, (grad,))

    def _all(self, use: Use, grads: Any) -> None:
        if self._receiver is None:
            if self._early is not None:
                self._early.append((use, tuple(grads)))
            return
        try:
            with self.meter:
                self._receiver(use, tuple(grads))
        except Exception as failure:  # nor a backward pass
            self.failure = failure


def _seen(
    observer: Observer, module: nn.Module, before: Tensor | None, outputs: list[Tensor]
) -> list[Tensor] | str:
    """Return what an observer sees; if it fails, the call is beyond its formula, and no more than that."""
    try:
        return observer.after(module, before, outputs)
    except Exception as failure:
        return f"what it keeps inside was not seen: {type(failure).__name__}: {failure}"


def _mark(use: Use, outputs: list[Tensor]) -> None:
    """Note at the nodes that made a call's outputs which call it was, for `calls_at`.

    (The other way round, a call that held its nodes would be a cycle through C++: the call is held by its hook.)
    """
    for place, output in enumerate(outputs):
        made = get_gradient_edge(output)
        _notes(made.node).setdefault(MARK, []).append((weakref.ref(use), place, made.output_nr))


def calls_at(node: Node) -> list[tuple[Use, int, int]]:
    """Return (call, which of its outputs, which result of the node) for what a node made."""
    return [(use, place, nr) for ref, place, nr in _notes(node).get(MARK, ()) if (use := ref()) is not None]


def _notes(node: Any) -> dict[str, Any]:
    """Return the dictionary that every node of the autograd graph has for whoever wants to note something."""
    notes: dict[str, Any] = node.metadata
    return notes


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _kept(moving: frozenset[int], leaf: Any) -> Any:
    """Return an input without its graph; a copy where it is (a view of) a parameter, which the optimiser moves."""
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.detach()
    if leaf.layout is torch.strided and leaf.untyped_storage().data_ptr() in moving:
        return leaf.clone()
    return leaf
