"""For tests, ours and those of plugin authors: a zoo of small problems, and made-up runs (`cockpit.testing.runs`).

The names are imported when first used: making up a run needs no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cockpit.testing.problem import Batch, Problem, Weighting, objective
    from cockpit.testing.problems import problem, problems
    from cockpit.testing.runs import fake_run

__all__ = ["Batch", "Problem", "Weighting", "fake_run", "objective", "problem", "problems"]

_HOME = {
    "Batch": "problem",
    "Problem": "problem",
    "Weighting": "problem",
    "objective": "problem",
    "problem": "problems",
    "problems": "problems",
    "fake_run": "runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


class _Package(ModuleType):
    """Keeps ``problem`` and ``problems`` the functions: importing the files of those names would replace them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
