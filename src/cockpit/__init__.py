"""Cockpit: a debugger for the training of neural networks.

The names of this package are imported when first used, so reading a run (`Run`) never imports torch. Quantities
are found by their file: ``cockpit.NormTest`` is the class in ``quantities/norm_test.py``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cockpit.naming import snake_case
from cockpit.version import __version__

if TYPE_CHECKING:
    from cockpit.errors import CockpitError
    from cockpit.quantities.bins import GradAbsMax, GradQuantile, NoAdaptation, ParamAbsMax
    from cockpit.schedule import at, every, log_spaced
    from cockpit.session import Cockpit, attach
    from cockpit.store.record import Event, Histogram, Record
    from cockpit.store.run import Run, Series

__all__ = [
    "Cockpit",
    "CockpitError",
    "Event",
    "GradAbsMax",
    "GradQuantile",
    "Histogram",
    "NoAdaptation",
    "ParamAbsMax",
    "Record",
    "Run",
    "Series",
    "__version__",
    "at",
    "attach",
    "every",
    "log_spaced",
]

_HOME = {
    "Cockpit": "session",
    "attach": "session",
    "CockpitError": "errors",
    "at": "schedule",
    "every": "schedule",
    "log_spaced": "schedule",
    "Run": "store.run",
    "Series": "store.run",
    "Event": "store.record",
    "Histogram": "store.record",
    "Record": "store.record",
    "GradAbsMax": "quantities.bins",
    "GradQuantile": "quantities.bins",
    "NoAdaptation": "quantities.bins",
    "ParamAbsMax": "quantities.bins",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None and name[:1].isupper() and find_spec(f"cockpit.quantities.{snake_case(name)}"):
        home = f"quantities.{snake_case(name)}"
    module = import_module(f"cockpit.{home}") if home else None
    if module is None or not hasattr(module, name):
        raise AttributeError(f"module 'cockpit' has no attribute {name!r}")
    return getattr(module, name)
