"""Finds instruments by name: the built-in folder first, then plugins under the entry point ``cockpit.instruments``."""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from cockpit import instruments
from cockpit.errors import CockpitError
from cockpit.instruments.instrument import Instrument
from cockpit.naming import snake_case


@cache
def all_instruments() -> dict[str, Instrument]:
    """Return every instrument by its name."""
    found: dict[str, Instrument] = {}
    for info in pkgutil.iter_modules(instruments.__path__):
        module = import_module(f"{instruments.__name__}.{info.name}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            named = own and issubclass(cls, Instrument) and snake_case(cls.__name__) == info.name
            if named and not inspect.isabstract(cls):
                found[info.name] = cls()
    for point in entry_points(group="cockpit.instruments"):
        try:
            found[point.name] = point.load()()
        except Exception as failure:  # one broken plugin must not take the others with it
            warnings.warn(f"the instrument {point.name!r} could not be loaded: {failure!r}", stacklevel=2)
    return found


def instrument(name: str) -> Instrument:
    """Return an instrument by its name."""
    found = all_instruments().get(name)
    if found is None:
        raise CockpitError(f"there is no instrument {name!r}. Known: {', '.join(all_instruments())}")
    return found
