"""Finds instruments by name: the built-in folder first, then plugins under the entry point ``cockpit.instruments``."""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from cockpit import instruments
from cockpit.errors import CockpitError
from cockpit.instruments.instrument import Instrument
from cockpit.instruments.screens import SCREENS, Column, Screen
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


@cache
def all_screens() -> tuple[Screen, ...]:
    """Return the screens; instruments of plugins, which stand on none, follow on the auxiliary one."""
    placed = {
        name for screen in SCREENS for row in screen.rows for column in row for name in column.instruments
    }
    more = [Column(one.title, (name,)) for name, one in all_instruments().items() if name not in placed]
    rows = tuple(tuple(more[k : k + 3]) for k in range(0, len(more), 3))
    return tuple(replace(s, rows=s.rows + rows) if s.name == "secondary" else s for s in SCREENS)


def instrument(name: str) -> Instrument:
    """Return an instrument by its name."""
    found = all_instruments().get(name)
    if found is None:
        raise CockpitError(f"there is no instrument {name!r}. Known: {', '.join(all_instruments())}")
    return found
