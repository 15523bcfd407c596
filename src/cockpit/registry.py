"""Finds quantities by name: the built-in folder first, then plugins under the entry point ``cockpit.quantities``."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from cockpit import quantities
from cockpit.errors import CockpitError
from cockpit.naming import snake_case
from cockpit.presets import PRESETS
from cockpit.quantities.quantity import Quantity
from cockpit.schedule import as_schedule

_broken: dict[str, str] = {}
"""Plugins that could not be imported, and why."""


@cache
def quantity_classes() -> dict[str, type[Quantity]]:
    """Return every quantity class by its stored name."""
    found: dict[str, type[Quantity]] = {}
    for info in pkgutil.iter_modules(quantities.__path__):
        module = import_module(f"{quantities.__name__}.{info.name}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, Quantity) and snake_case(cls.__name__) == info.name:
                found[info.name] = cls
    for point in entry_points(group="cockpit.quantities"):
        try:
            found[point.name] = point.load()
        except Exception as failure:  # one broken plugin must not take the others with it
            _broken[point.name] = f"{type(failure).__name__}: {failure}"
    found.pop("quantity", None)
    return found


def make_quantity(name: str, when: object = None) -> Quantity:
    """Return a quantity with default settings; both ``norm_test`` and ``NormTest`` are understood."""
    classes = quantity_classes()
    cls = classes.get(name) or classes.get(snake_case(name))
    if cls is None:
        near = difflib.get_close_matches(snake_case(name), classes, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if name in _broken:
            hint = f" A plugin of that name could not be imported ({_broken[name]})."
        raise CockpitError(f"there is no quantity {name!r}.{hint} Known: {', '.join(sorted(classes))}")
    return cls() if when is None else cls(when=as_schedule(when))


def make_preset(name: str, when: object = None) -> list[Quantity]:
    """Return the quantities of a configuration."""
    if name not in PRESETS:
        raise CockpitError(f"there is no configuration {name!r}; choose one of {', '.join(PRESETS)}")
    return [make_quantity(q, when) for q in PRESETS[name]]


def preset_of(quantities: Iterable[Quantity]) -> str:
    """Return the name of the configuration that consists of these quantities, or nothing."""
    names = {q.name for q in quantities}
    return next((preset for preset, members in PRESETS.items() if names == set(members)), "")
