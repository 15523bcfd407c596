"""The report: runs in one HTML file that can be kept, sent, and opened anywhere; interactive, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.instruments.chart import View
from cockpit.instruments.instrument import Instrument
from cockpit.instruments.layers import layer_tree
from cockpit.instruments.overview import run_page
from cockpit.instruments.shelf import all_instruments
from cockpit.render.page import chart_json
from cockpit.render.single_page import single_page
from cockpit.render.status import chart_of
from cockpit.store.cached import CachedRun
from cockpit.store.memory import Memory
from cockpit.store.run import Run


def report(
    runs: Sequence[Run],
    *,
    moments: int = 60,
    points: int = 1000,
    layers: int = 20,
    compact: bool = False,
    dist: Path | None = None,
) -> str:
    """Return a page that shows runs.

    Args:
        runs: one or several, which can then be compared.
        moments: how many steps the time bar can move to, for instruments that show one step.
        points: how many points a curve has at most.
        layers: how many layers can be looked at singly, the most conspicuous ones.
        compact: as small as for a cell of a notebook.
        dist: the built front end; the one of this package if None.
    """
    data: dict[str, Any] = {"runs": [], "charts": {}, "scoped": {}, "layers": {}}
    for number, run in enumerate(runs, 1):
        # instruments ask the same at every moment; a run that grows meanwhile is shown as it was at the beginning
        name, kept = f"run{number}", CachedRun(run.path, Memory())  # not a word of where the run was
        data["runs"].append(run_page(kept, name))
        tree = layer_tree(kept)
        data["layers"][name] = {"layers": tree}
        data["charts"][name] = {
            instrument.name: _charts(instrument, kept, moments, points)
            for instrument in all_instruments().values()
        }
        data["scoped"][name] = {
            layer["name"]: {
                instrument.name: chart_json(
                    chart_of(kept, instrument.name, View(points=points, scope=layer["name"]))
                )
                for instrument in all_instruments().values()
                if instrument.layered
            }
            for layer in tree[:layers]
        }
    title = ", ".join(page["name"] for page in data["runs"])
    return single_page(data, dist, compact, f"{title} – Cockpit")


def _charts(instrument: Instrument, run: CachedRun, moments: int, points: int) -> dict[str, Any]:
    """Return the steps at which an instrument is shown, and its chart at each; one without step if it needs none."""
    steps: list[int | None] = [None]
    if instrument.moment:
        steps = list(_spread(instrument, run, moments)) or [None]
    charts = [chart_json(chart_of(run, instrument.name, View(step=step, points=points))) for step in steps]
    return {"steps": steps, "charts": charts}


def _spread(instrument: Instrument, run: CachedRun, moments: int) -> list[int]:
    """Return steps at which something was recorded for an instrument: evenly chosen, with the first and the last."""
    found = [
        run.series(name, scopes[0], points=None if scopes[0] == "" else moments).steps
        for name in instrument.reads
        if name in run.names() and (scopes := run.scopes(name))
    ]
    steps = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    chosen = np.linspace(0, len(steps) - 1, min(moments, len(steps))).round().astype(int)
    return [int(step) for step in np.unique(steps[chosen])]
