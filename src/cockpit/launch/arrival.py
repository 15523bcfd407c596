"""Being told when a module has been imported by somebody else, without importing it oneself.

A script may set variables before it imports torch, and one that needs no torch must not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Call = Callable[[ModuleType], None]


def when_imported(name: str, call: Call) -> None:
    """Call with the module as soon as it has been imported; at once if it is there already."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        sys.meta_path.insert(0, Arrival(name, call))


class Arrival(MetaPathFinder):
    """Waits among the finders of modules for one name, and leaves when it has come."""

    def __init__(self, name: str, call: Call) -> None:
        self._name, self._call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, with the call behind its execution."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in tuple(sys.meta_path))
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._call(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
