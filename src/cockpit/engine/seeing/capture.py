"""Capture: sees layers on their way forward and gradients on their way back; the only file with hooks.

A forward hook on every layer that has a formula keeps the layer's inputs with a hook on its output tensor.
(Module backward hooks fail after in-place operations; tensor hooks do not.) Going back, the output gradients are
handed to whoever `receive`s at that moment, and to nobody otherwise: tensor hooks also fire for
``autograd.grad`` and for evaluation passes of the user's own.

The kept inputs are owned by the autograd graph (through the hook), never by us: when the graph dies, so do they.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cockpit.engine.layers.formula import Formula, Observer, Replay, formula_for
from cockpit.engine.seeing.hooks import own_hooks, register_own
from cockpit.engine.seeing.meter import Meter
from cockpit.engine.seeing.use import Use, mark, tensors_in

Receiver = Callable[[Use, tuple[Tensor | None, ...]], None]


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
        self.receiver: Receiver | None = None
        """Who is handed output gradients at the moment."""
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
        return self.receiver is not None

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
        for ref in self._uses:
            if (use := ref()) is not None and use.handle is not None:
                use.part()
        self._uses.clear()
        self._replays.clear()
        self._kept.clear()
        self.outputs.clear()
        self.failure = None
        self._early = None

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
        before, self.receiver = self.receiver, receiver
        try:
            yield
        finally:
            self.receiver = before

    def expect(self) -> None:
        """Keep output gradients that come before there is a receiver: a pass we notice only as it runs."""
        self._early = []

    def early(self) -> list[tuple[Use, tuple[Tensor | None, ...]]]:
        """Return what came early, and keep nothing more."""
        found, self._early = self._early or [], None
        return found

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = tensors_in((args, kwargs))
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
        found = (output,) if isinstance(output, Tensor) else tensors_in(output)
        outputs = [t for t in found if t.requires_grad]
        if not outputs or not torch.is_grad_enabled():
            return
        try:
            with self.meter:
                use = Use(name, module, formula, args, kwargs, outputs, self._moving)
                if name in self._replays:
                    use.replay = self._replays.pop(name)[-1]
                if name in self._kept and formula.observer is not None:
                    use.observe(_seen(formula.observer, module, self._kept.pop(name), outputs))
                self._uses.append(weakref.ref(use))
                if self.keep_outputs:
                    mark(use, outputs)
                if len(outputs) == 1:
                    register_own(outputs[0], partial(self._arrived, use))
                else:
                    with own_hooks():
                        several = torch.autograd.graph.register_multi_grad_hook
                        use.handle = several(outputs, partial(self._arrived, use))
        except Exception as failure:  # nor must this
            self.failure = failure

    def _root(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        found = (output,) if isinstance(output, Tensor) else tensors_in(output)
        tensors = [t for t in found if t.requires_grad and t.is_floating_point()]
        if tensors:
            inputs = args if args and isinstance(args[0], Tensor) else tensors_in((args, kwargs))
            sizes = [t.shape[0] for t in inputs if isinstance(t, Tensor) and t.ndim > 0]
            self.examples = sizes[0] if sizes else 0
            if self.keep_outputs:  # the only tensors we hold ourselves; the newest calls are enough
                self.outputs = [*self.outputs, *tensors][-4 * len(tensors) :]
            if self.on_outputs is not None:
                try:
                    self.on_outputs(tensors, self.examples)
                except Exception as failure:
                    self.failure = failure

    def _arrived(self, use: Use, grads: Any) -> None:
        """Output gradients have come: a tensor, or those of several outputs."""
        given = (grads,) if isinstance(grads, Tensor) else tuple(grads)
        if self.receiver is None:
            if self._early is not None:
                self._early.append((use, given))
            return
        try:
            with self.meter:
                use.passed = True
                self.receiver(use, given)
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
