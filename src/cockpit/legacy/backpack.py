"""Hands extensions of the user's own on to BackPACK, where it is installed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from cockpit.errors import CockpitError


def running(
    extensions: Sequence[Any], hooks: Sequence[Callable[[Any], Any]], save_memory: bool, debug: bool
) -> ExitStack:
    """Return the context in which a backward pass also computes BackPACK's extensions."""
    stack = ExitStack()
    if not extensions:
        return stack
    if find_spec("backpack") is None:
        names = ", ".join(sorted(type(e).__name__ for e in extensions))
        raise CockpitError(
            f"the extensions {names} need BackPACK, which is not installed: "
            "pip install backpack-for-pytorch. The quantities of cockpit.legacy do without."
        )

    def hook(module: Any) -> None:
        for each in hooks:
            each(module)

    convolution = import_module("backpack.core.derivatives.convnd")
    stack.enter_context(convolution.weight_jac_t_save_memory(save_memory=save_memory))
    extended = import_module("backpack").backpack
    stack.enter_context(extended(*extensions, extension_hook=hook if hooks else None, debug=debug))
    return stack


@contextmanager
def silent() -> Iterator[None]:
    """Keep BackPACK out of backward passes inside the block: they are not the user's."""
    if "backpack" not in sys.modules:
        yield
        return
    with import_module("backpack").backpack(retain_graph=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        yield


def distinct(extensions: Iterable[Any]) -> list[Any]:
    """Return one extension of each class."""
    return list({type(e): e for e in reversed(list(extensions))}.values())[::-1]


def free(params: Iterable[Tensor], extensions: Iterable[Any], keep: Collection[str]) -> None:
    """Delete what BackPACK has left on the parameters, but for the attributes to keep."""
    for parameter in params:
        for extension in extensions:
            if extension.savefield not in keep and hasattr(parameter, extension.savefield):
                delattr(parameter, extension.savefield)
