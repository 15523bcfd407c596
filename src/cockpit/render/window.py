"""Windows for figures, where there is a display: the only file that knows pyplot, and only when a window is wanted."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from matplotlib.figure import Figure


def window(name: str) -> Figure | None:
    """Return the figure of a window, which is opened if it is not yet; None where there is no display."""
    if _kernel() is not None:
        return None
    pyplot = import_module("matplotlib.pyplot")
    if not _interactive():
        return None
    figure: Figure = pyplot.figure(num=name)
    return figure


def show(figure: Figure, block: bool = False) -> None:
    """Bring a figure to the screen: its window, or below the cell of a notebook; nothing happens without a display."""
    if _kernel() is not None:
        import_module("IPython.display").display(figure)
    elif figure.canvas.manager is not None:
        pyplot = import_module("matplotlib.pyplot")
        figure.canvas.draw_idle()
        pyplot.show(block=block)
        figure.canvas.flush_events()


def _interactive() -> bool:
    """Say whether matplotlib, left alone, would open windows."""
    matplotlib = import_module("matplotlib")
    backends = import_module("matplotlib.backends")
    quiet = backends.backend_registry.list_builtin(backends.BackendFilter.NON_INTERACTIVE)
    return matplotlib.get_backend().lower() not in [name.lower() for name in quiet]


def _kernel() -> Any:
    """Return the kernel of the notebook this runs in, if any."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None)
