"""Finds the model a user names: in a script, a script and a name, or a module and a name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from cockpit.errors import CockpitError

FACTORIES = ("build", "build_model", "make_model", "create_model", "get_model")
INPUTS = "example_inputs"


@dataclass(frozen=True, eq=False)
class Target:
    """A model and, where they could be had, inputs to call it with."""

    name: str
    model: nn.Module
    inputs: Any = None


def find_target(text: str) -> Target:
    """Return the model that ``script.py``, ``script.py:name`` or ``module:name`` means."""
    place, _, name = text.partition(":")
    module = _script(Path(place)) if place.endswith(".py") else _module(place)
    chosen = name or _choose(module)
    value = module
    for attribute in chosen.split("."):
        if not hasattr(value, attribute):
            raise CockpitError(f"{place} has no {chosen!r}.{_offer(module)}")
        value = getattr(value, attribute)
    label = f"{place}:{chosen}"
    if not isinstance(value, nn.Module) and callable(value):
        value = _guarded(value, f"{label}() raised")
    inputs = getattr(module, INPUTS, None)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], nn.Module):
        value, inputs = value
    if not isinstance(value, nn.Module):
        raise CockpitError(
            f"{label} gives {type(value).__name__}, not a torch.nn.Module or a pair (module, example inputs)."
        )
    if callable(inputs) and not isinstance(inputs, nn.Module):
        inputs = _guarded(inputs, f"{place}:{INPUTS}() raised")
    return Target(label, value, inputs)


def _script(path: Path) -> ModuleType:
    if not path.is_file():
        raise CockpitError(f"{path} does not exist.")
    # not __main__: what stands under `if __name__ == "__main__":` (the training) is not run
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))  # as Python does for a script
    sys.modules.setdefault(path.stem, module)
    load = spec.loader.exec_module
    _guarded(lambda: load(module), f"{path} could not be imported")
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    found: ModuleType = _guarded(
        lambda: importlib.import_module(name), f"module {name!r} could not be imported"
    )
    return found


def _guarded(call: Callable[[], Any], what: str) -> Any:
    """Call what the user wrote; what it raises becomes one line."""
    try:
        return call()
    except SystemExit as end:
        raise CockpitError(f"{what}: it ended the program ({end.code}). Guard it by __name__.") from end
    except Exception as error:
        raise CockpitError(f"{what}: {type(error).__name__}: {error}{_where(error)}") from error


def _where(error: Exception) -> str:
    """Name the place in the user's own files, if it is there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _choose(module: ModuleType) -> str:
    """Return the name of the one thing that can be meant."""
    models, factories, classes = _candidates(module)
    for group in (models, factories, classes):
        if len(group) == 1:
            return group[0]
        if group:
            preferred = [name for name in ("model", "net", *FACTORIES) if name in group]
            if preferred:
                return preferred[0]
            raise CockpitError(f"several models could be meant.{_offer(module)}")
    raise CockpitError(
        f"{module.__name__} has no model at its top level: neither a torch.nn.Module, nor a function "
        f"called {', '.join(FACTORIES)} without arguments. Name one: {module.__name__}.py:function"
    )


def _candidates(module: ModuleType) -> tuple[list[str], list[str], list[str]]:
    """Return the names of models, of functions that make one, and of classes that need no arguments."""
    names = vars(module)
    models = [n for n, v in names.items() if isinstance(v, nn.Module)]
    factories = [n for n in FACTORIES if inspect.isfunction(names.get(n)) and _needs_nothing(names[n])]
    classes = [
        n
        for n, v in names.items()
        if inspect.isclass(v)
        and issubclass(v, nn.Module)
        and v.__module__ == module.__name__
        and _needs_nothing(v)
    ]
    return models, factories, classes


def _needs_nothing(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _offer(module: ModuleType) -> str:
    names = [name for group in _candidates(module) for name in group]
    return f" It has: {', '.join(names)}; name one of them after a colon." if names else ""
