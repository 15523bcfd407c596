"""Build hook: puts the page into the package when it is not there yet.

A checkout builds it from ``web/``. An sdist carries it built, so that installing one needs no node.
``COCKPIT_SKIP_WEB=1`` leaves it out, for work on the Python part alone: ``cockpit show`` then says how to build it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface[Any]):
    """Builds ``src/cockpit/web/dist`` by ``web/build.py``, for wheel, editable install and sdist alike."""

    def dependencies(self) -> list[str]:
        """Ask for node from PyPI where the page must be built and the machine has no node for it."""
        if not self._missing():
            return []
        build = self._build()
        return [] if build.npm_here() else [build.NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page if it is missing."""
        if not self._missing():
            return
        build = self._build()
        try:
            build.build()
        except (build.BuildError, subprocess.CalledProcessError, OSError) as error:
            raise SystemExit(
                f"The page could not be built: {error}. To install without it: COCKPIT_SKIP_WEB=1"
            ) from error

    def _missing(self) -> bool:
        page = Path(self.root, "src", "cockpit", "web", "dist", "index.html")
        return not page.is_file() and not os.environ.get("COCKPIT_SKIP_WEB")

    def _build(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("cockpit_web_build", Path(self.root, "web", "build.py"))
        if spec is None or spec.loader is None:
            raise SystemExit("web/build.py is missing")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
