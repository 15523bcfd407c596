"""CockpitPlotter: the original's figures, drawn by today's instruments."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit.errors import CockpitError
from cockpit.legacy.cockpit import Cockpit
from cockpit.legacy.log import read_log
from cockpit.legacy.tracked import Tracked
from cockpit.render.plot_command import drawing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class CockpitPlotter:
    """Draws what was tracked. Constructing one changes no setting of matplotlib.

    Args:
        secondary_screen: draw the secondary screen as well.

    Attributes:
        fig: the figure of the primary screen, after `plot`.
        secondary_fig: that of the secondary screen.
        tracking_data: one row for each step, with columns ``iteration`` and one for each quantity.
        tracked: the same for instruments.
        optimizer: the optimizer's name, where it is known.
    """

    fig: Figure
    secondary_fig: Figure
    tracking_data: pd.DataFrame

    def __init__(self, secondary_screen: bool = False) -> None:
        self._secondary_screen = secondary_screen
        self.optimizer = ""
        self.show_log_iter = False
        self.tracked = Tracked({}, {})

    def plot(
        self,
        source: Cockpit | str,
        show_plot: bool = True,
        block: bool = False,
        save_plot: bool = False,
        savedir: str | None = None,
        savename: str = "cockpit",
        savename_append: str | None = None,
        savefig_kwargs: dict[str, Any] | None = None,
        show_log_iter: bool = False,
        discard: int | None = None,
        plot_title: str | None = None,
        debug: bool = False,
    ) -> None:
        """Draw a cockpit, or the log of one.

        Args:
            source: a cockpit, or the path of a log without ``.json``.
            show_plot: open a window, or redraw the one that is open; in a notebook, show the figure below the cell.
                Nothing happens where there is no display.
            block: wait until the window is closed.
            save_plot: write ``savedir/{savename}__{primary|secondary}[__{savename_append}].png``.
            savedir: the folder to save to; default: that of the log.
            savename: how names of files begin.
            savename_append: how they end.
            savefig_kwargs: handed on to ``savefig``; ``format`` is also the file's ending.
            show_log_iter: iterations on a logarithmic axis.
            discard: the last iteration to draw.
            plot_title: stands above the figure; default: "Cockpit for" and the optimizer.
            debug: warn of instruments whose quantities were not tracked.
        """
        if save_plot and savedir is None and not isinstance(source, str):
            raise ValueError("Please specify savedir when plotting a Cockpit.")
        self._read(source, discard)
        if find_spec("pandas") is not None:
            self._tabulate()
        self.show_log_iter = show_log_iter
        title = plot_title or " for ".join(filter(None, ["Cockpit", self.optimizer]))
        self.fig = self._screen("primary", title, show_plot)
        figures = {"primary": self.fig}
        if self._secondary_screen:
            self.secondary_fig = figures["secondary"] = self._screen("secondary", title, show_plot)
        if debug:
            self._warn()
        if save_plot:
            folder = Path(savedir if savedir is not None else os.path.dirname(str(source)))
            more = dict(savefig_kwargs or {})
            for screen, figure in figures.items():
                name = "__".join(filter(None, [savename, screen, savename_append]))
                folder.mkdir(parents=True, exist_ok=True)
                drawing("figure").save(figure, folder / f"{name}.{more.get('format', 'png')}", **more)
        if show_plot:
            for figure in figures.values():
                drawing("window").show(figure, block)

    def build_animation(self, logpath: str, duration: int = 200, loop: int = 0) -> None:
        """Write a log as an animation: a GIF for each screen beside it, with axes that stay where they are.

        Args:
            logpath: the log, with or without ``.json``.
            duration: how long each frame is shown, in milliseconds.
            loop: how often it is repeated; 0: for ever.
        """
        path = logpath.removesuffix(".json")
        self._read(path)
        title = " for ".join(filter(None, ["Cockpit", self.optimizer]))
        for screen in ("primary", "secondary")[: 1 + self._secondary_screen]:
            drawing("animation").animate(
                self.tracked,
                f"{path}__{screen}.gif",
                screen=screen,
                fps=1000 / duration,
                loop=loop,
                title=title,
            )

    def _read_tracking_results(self, source: Cockpit | str, discard: int | None = None) -> None:
        """Read a cockpit or a log into ``tracking_data``."""
        self._read(source, discard)
        self._tabulate()

    def _read(self, source: Cockpit | str, discard: int | None = None) -> None:
        output: Mapping[int, Mapping[str, Any]]
        if isinstance(source, Cockpit):
            output, self.optimizer = source.get_output(), getattr(source, "_optimizer_name", "")
        elif isinstance(source, str):
            parts = Path(source).absolute().parts
            # DeepOBS puts logs into <problem>/<Optimizer>/<settings>/
            self.optimizer = parts[-3] if len(parts) > 4 and source.endswith("__log") else ""
            output = read_log(source)
        else:
            raise ValueError(f"Source must be Cockpit or path to .json. Got {source}")
        self._output = {step: output[step] for step in sorted(output) if discard is None or step <= discard}
        self.tracked = Tracked(self._output, {"optimizer": self.optimizer} if self.optimizer else {})

    def _tabulate(self) -> None:
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise CockpitError(
                "tracking_data needs pandas: pip install 'cockpit-debugger[pandas]'"
            ) from error
        rows = [{"iteration": step, **entries} for step, entries in self._output.items()]
        self.tracking_data = pandas.DataFrame(rows)

    def _screen(self, screen: str, title: str, shown: bool) -> Figure:
        """Draw a screen, into its window if there is one."""
        into = drawing("window").window(f"Cockpit: {screen} screen") if shown else None
        figure: Figure = drawing("figure").figure(
            self.tracked, screen=screen, title=title, log_steps=self.show_log_iter, into=into
        )
        return figure

    def _warn(self) -> None:
        """Warn of what is missing, as the original does in its debug mode."""
        there = self.tracked.names()
        for name, instrument in import_module("cockpit.instruments.shelf").all_instruments().items():
            absent = [
                read for read in instrument.reads if read not in there and read not in instrument.optional
            ]
            if absent and instrument.group != "layers":
                warnings.warn(
                    f"{name} has nothing to show: {', '.join(absent)} was not tracked", stacklevel=3
                )
