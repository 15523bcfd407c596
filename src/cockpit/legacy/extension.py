"""`extend`: makes a model and its loss function known, so that cheap exact formulas can be used for them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

_MODULES: WeakSet[nn.Module] = WeakSet()
_CALLS = WeakTensorKeyDictionary()
"""How the losses that are alive were made: {loss: (loss function, arguments, keyword arguments)}."""


def extend(module: nn.Module, debug: bool = False, use_converter: bool = False) -> nn.Module:
    """Make a module known and return it; it is not changed.

    Without it every quantity works as well, but goes the slower way through the graph. Where a script has
    imported BackPACK, the module is also extended by BackPACK, for the script's own extensions.

    Args:
        module: the model, or its loss function.
        debug: handed on to BackPACK.
        use_converter: handed on to BackPACK.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"extend(module): a torch.nn.Module, not {type(module).__name__}")
    if "backpack" in sys.modules:
        module = import_module("backpack").extend(module, debug=debug, use_converter=use_converter)
    if module not in _MODULES:
        _MODULES.add(module)
        if getattr(module, "reduction", "none") in ("mean", "sum"):
            module.register_forward_hook(_remember, with_kwargs=True)
    return module


def _remember(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.requires_grad:
        _CALLS[output] = (module, args, kwargs)


def unreduced(loss: Tensor) -> Tensor | None:
    """Return the individual losses of a loss that an extended loss function has returned, else None."""
    call = _CALLS.get(loss)
    if call is None:
        return None
    module, args, kwargs = call
    single = copy.copy(module)
    single.reduction = "none"
    with torch.enable_grad():
        losses: Tensor = single.forward(*args, **kwargs)
    return losses


class Chosen(nn.Module):
    """The parameters handed to a cockpit, with the extended model that owns them if there is one.

    Looks to the engine like a model with exactly these parameters, in this order.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        wanted = {id(p) for p in parameters}
        owners = [m for m in _MODULES if wanted <= {id(p) for p in m.parameters()}]
        owner = min(owners, key=lambda m: sum(1 for _ in m.parameters()), default=None)
        # Kept in a tuple: registered as a submodule, its parameters would be this module's, too.
        self.owner: tuple[nn.Module, ...] = () if owner is None or not parameters else (owner,)
        named = {id(p): name for m in self.owner for name, p in m.named_parameters()}
        self._chosen = {named.get(id(p), f"param_{k}"): p for k, p in enumerate(parameters)}
        self.names = [named.get(id(p), f"param_{k}") for k, p in enumerate(parameters)]

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the chosen parameters only."""
        yield from self._chosen.items()  # type: ignore[misc]

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the owner's modules."""
        for owner in self.owner:
            yield from owner.named_modules()

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        """Listen to the owner, which is what the user calls."""
        listen = self.owner[0].register_forward_hook if self.owner else super().register_forward_hook
        return listen(*args, **kwargs)
