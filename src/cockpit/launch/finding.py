"""Finding what a script trains: its optimisers when they are made, its models when they are called.

The model of an optimiser is the first module called that holds all parameters of it: as a module is called before
those inside of it, that is the outermost one of those called. (A container that is never called itself, such as one
of generator and discriminator, would be none that can be watched.)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cockpit.launch.arrival import when_imported

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

TRIES = 3
"""After so many steps without a call of a fitting model, an optimiser is given up."""


class Finder:
    """Listens to optimisers, to calls of modules, and to cockpits of the script's own.

    Args:
        found: what to do with a model and its optimisers, before its first forward pass.
        taken: what to do with a model for which the script makes a cockpit itself.
        guarded: a block in which our own errors stay.
    """

    def __init__(
        self,
        found: Callable[[nn.Module, list[Optimizer]], None],
        taken: Callable[[nn.Module], None],
        guarded: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._found, self._taken, self._guarded = found, taken, guarded
        self._process = os.getpid()
        self._pending: dict[weakref.ref[Optimizer], int] = {}
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._claimed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._undo: Callable[[], bool] | None = None
        self._all_claimed = False
        self.own = self.torch = False
        """Whether we are making a cockpit ourselves at the moment; whether the script has imported torch."""
        self.claims = 0
        self.lost: list[str] = []
        """The kinds of the optimisers of which no model was found."""

    def listen(self) -> None:
        """Begin."""
        when_imported("torch.optim.optimizer", self._optimizers_came)
        when_imported("cockpit.session.cockpit", self._cockpits_came)
        when_imported("cockpit.legacy.cockpit", self._original_came)

    def waiting(self) -> list[str]:
        """Return the kinds of optimisers whose model was not called yet."""
        return [type(optimizer).__name__ for ref in self._pending if (optimizer := ref()) is not None]

    def _optimizers_came(self, module: ModuleType) -> None:
        kind: Any = module.Optimizer
        make, self.torch = kind.__init__, True

        @wraps(make)
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._made(optimizer)

        kind.__init__ = made
        # some are made by copying or loading
        module.register_optimizer_step_post_hook(self._stepped)

    def _cockpits_came(self, module: ModuleType) -> None:
        make = module.Cockpit.__init__

        @wraps(make)
        def made(cockpit: Any, model: Any, *args: Any, **kwargs: Any) -> None:
            if not self.own:
                self._claim(model)
            make(cockpit, model, *args, **kwargs)

        module.Cockpit.__init__ = made

    def _original_came(self, module: ModuleType) -> None:
        """The script uses the original's interface, whose cockpits do not know their model: all is left to them."""
        self._all_claimed = True
        self.claims += 1

    def _claim(self, model: Any) -> None:
        if os.getpid() == self._process:
            with self._guarded():
                self.claims += 1
                self._claimed.add(model)
                self._taken(model)

    def _made(self, optimizer: Optimizer) -> None:
        if os.getpid() != self._process:  # a child that was forked has no run
            return
        with self._guarded():
            self._known.add(optimizer)
            self._pending[weakref.ref(optimizer)] = 0
            if self._undo is None:
                self._listen_to_calls()

    def _listen_to_calls(self) -> None:
        # Hooks on all modules would do, but torch.compile warns of them, and module.compile() goes around them.
        torch: Any = import_module("torch")
        kind, compiling = torch.nn.Module, torch.compiler.is_compiling
        call = kind.__call__

        @wraps(call)
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not compiling() and torch.is_grad_enabled():
                self._called(module)
            return call(module, *args, **kwargs)

        def undo() -> bool:
            ours = kind.__call__ is called  # or somebody has done the same after us
            if ours:
                kind.__call__ = call
            return ours

        kind.__call__, self._undo = called, undo

    def _called(self, module: nn.Module) -> None:
        if not self._pending or os.getpid() != self._process:
            return
        with self._guarded():
            own = _parameters(module)
            fitting = {ref: o for ref in self._pending if (o := ref()) is not None and _moved(o) <= own}
            if not fitting:
                return
            for ref in fitting:
                del self._pending[ref]
            self._rest()
            free = [o for o in fitting.values() if not self._is_claimed(o)]
            for model, optimizers in _assigned(module, free):
                self._found(model, optimizers)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer not in self._known:
            self._made(optimizer)
            return
        ref = weakref.ref(optimizer)
        if ref not in self._pending:
            return
        with self._guarded():
            self._pending[ref] += 1
            if self._pending[ref] >= TRIES:
                del self._pending[ref]
                if not self._is_claimed(optimizer):
                    self.lost.append(type(optimizer).__name__)
                self._rest()

    def _is_claimed(self, optimizer: Optimizer) -> bool:
        moved = _moved(optimizer)
        return self._all_claimed or any(moved & _parameters(model) for model in self._claimed)

    def _rest(self) -> None:
        """Listen to calls only while some optimiser waits for its model: it costs at every layer."""
        self._pending = {ref: tries for ref, tries in self._pending.items() if ref() is not None}
        if not self._pending and self._undo is not None and self._undo():
            self._undo = None


def _assigned(module: nn.Module, optimizers: list[Optimizer]) -> list[tuple[nn.Module, list[Optimizer]]]:
    """Say which part of a called module belongs to which optimisers.

    Several that have a part of it each, all of its parameters and no others, train different models; else they
    train the module together.
    """
    if len(optimizers) > 1:
        trainable = {part: _parameters(part) for part in module.modules()}
        parts = [next((p for p, own in trainable.items() if own == _moved(o)), None) for o in optimizers]
        if None not in parts and len(set(parts)) == len(parts):
            return [(part, [o]) for part, o in zip(parts, optimizers, strict=True) if part is not None]
    return [(module, optimizers)] if optimizers else []


def _parameters(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters()}


def _moved(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}
