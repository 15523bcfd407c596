"""CockpitPlotter: the data behind the original's figures."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cockpit.errors import CockpitError
from cockpit.legacy.cockpit import Cockpit
from cockpit.legacy.log import read_log

if TYPE_CHECKING:
    import pandas as pd


class CockpitPlotter:
    """Reads tracked values into a table; drawing them is not part of this version.

    Attributes:
        tracking_data: one row for each step, with columns ``iteration`` and one for each quantity.
    """

    tracking_data: pd.DataFrame

    def __init__(self, secondary_screen: bool = False) -> None:
        self._secondary_screen = secondary_screen

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
        """Read the source, but draw nothing: scripts run through, and are told so by a warning.

        Args:
            source: a cockpit, or the path of a log without ``.json``.
            show_plot: not used.
            block: not used.
            save_plot: not used.
            savedir: not used.
            savename: not used.
            savename_append: not used.
            savefig_kwargs: not used.
            show_log_iter: not used.
            discard: the last step to read.
            plot_title: not used.
            debug: not used.
        """
        if find_spec("pandas") is not None:
            self._read_tracking_results(source, discard)
        text = "CockpitPlotter.plot draws nothing: figures are not part of this version of cockpit.legacy."
        warnings.warn(text, stacklevel=2)

    def _read_tracking_results(self, source: Cockpit | str, discard: int | None = None) -> None:
        if isinstance(source, Cockpit):
            output = source.get_output()
        elif isinstance(source, str):
            output = read_log(source)
        else:
            raise ValueError(f"Source must be Cockpit or path to .json. Got {source}")
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise CockpitError(
                "tracking_data needs pandas: pip install 'cockpit-debugger[pandas]'"
            ) from error
        steps = [step for step in sorted(output) if discard is None or step <= discard]
        self.tracking_data = pandas.DataFrame([{"iteration": step, **output[step]} for step in steps])
