"""Runs in a notebook: an interactive view in the cell, without a server, and a small one that follows a training."""

from __future__ import annotations

import html
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Floats
from cockpit.render.follow import Watch
from cockpit.render.panel import facts
from cockpit.render.report import report
from cockpit.render.status import Row, Status, status, thinned
from cockpit.store.run import Run

HEIGHT = 680
"""Of the cell's view, in pixels."""
COMPACT: dict[str, Any] = {"moments": 20, "points": 300, "layers": 6}
"""How much of a run goes into a cell: everything displayed is stored in the notebook's file."""
COLOURS = ("#4a73ad", "#f28033", "#4d9966", "#8a8a99")


def cell(run: Run, dist: Path | None = None) -> str:
    """Return HTML for a cell: the interactive view, and below it a table for viewers that show no frames.

    The frame is a page of its own in a sandbox: it can touch neither the notebook nor the network.
    """
    table = readings(status(run, time.time()))
    try:
        page = report([run], compact=True, dist=dist, **COMPACT)
    except CockpitError as error:  # the front end is not built
        return f"{table}<p>{html.escape(str(error))}</p>"
    frame = (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" title="Cockpit" loading="lazy" '
        f'style="width:100%;height:{HEIGHT}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )
    return f"{frame}<details><summary>Readings as a table</summary>{table}</details>"


def readings(now: Status) -> str:
    """Return a run at a glance as HTML without script or style sheet, which every viewer shows."""
    order = list(dict.fromkeys(row.heading for row in now.rows))
    body = "".join(_row(row, COLOURS[min(order.index(row.heading), len(COLOURS) - 1)]) for row in now.rows)
    events = "".join(
        f"<br>step {event.step:,}: {html.escape(event.kind)}: {html.escape(event.text)}"
        for event in now.events
    )
    head = f"<b>{html.escape(now.name)}</b> {html.escape(now.life)} &nbsp; {' &nbsp; '.join(facts(now))}"
    return f'<div style="font-size:13px">{head}<table style="margin:6px 0">{body}</table>{events}</div>'


class Live:
    """A view in a cell that is redrawn while a run grows; ends with the run, or by `stop`."""

    def __init__(self, source: Any, every: float, whole: bool) -> None:
        self._source, self._every, self._whole = source, every, whole
        self._stop = threading.Event()
        display = import_module("IPython.display")
        self._html = display.HTML
        self._handle = display.display(self._html("<i>Waiting for the first step…</i>"), display_id=True)
        self._thread = threading.Thread(target=self._follow, name="cockpit-notebook", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the view; what it shows stays."""
        self._stop.set()
        self._thread.join(10)

    def _follow(self) -> None:
        watch: Watch | None = None
        while not self._stop.is_set():
            try:
                watch = watch or Watch(Run(self._source))
                now = watch.status()
                self._show(readings(now))
                if now.life != "running":
                    if self._whole:
                        self._show(cell(Run(self._source)))
                    return
            except (CockpitError, OSError):  # not written yet
                pass
            self._stop.wait(self._every)

    def _show(self, text: str) -> None:
        if self._handle is not None:  # outside of a notebook there is no place to redraw
            self._handle.update(self._html(text))


def live(source: Any, every: float = 1.0, whole: bool = True) -> Live:
    """Show a run below the cell while it is written: in one cell `live(cockpit)`, then train in the same or the next.

    A thread reads the run's file and redraws the view; no server is started and the training is not touched.

    Args:
        source: a `Run`, its path, or the `Cockpit` that writes it.
        every: seconds between two looks.
        whole: put the interactive view in its place when the run has ended.
    """
    place = getattr(source, "run", source)
    place = place.path if isinstance(place, Run) else place
    if place is None:
        raise CockpitError("this cockpit records nothing, so there is nothing to show.")
    return Live(place, every, whole)


def _row(row: Row, colour: str) -> str:
    title, note = html.escape(row.title), html.escape(row.note)
    left = f'<td style="text-align:left;border-left:3px solid {colour};padding:2px 10px">{title}</td>'
    if row.missing:
        return (
            f'<tr style="opacity:.55">{left}<td></td><td colspan="2" style="text-align:left">{note}</td></tr>'
        )
    value = f'<td style="text-align:right"><b>{html.escape(row.reading)}</b></td>'
    return (
        f'<tr>{left}{value}<td>{_curve(row.course, colour)}</td><td style="text-align:left">{note}</td></tr>'
    )


def _curve(course: Floats, colour: str) -> str:
    """Return a course as a small picture; it breaks off where there is a gap."""
    heights = thinned(course, 120)
    x = np.linspace(1, 149, len(heights)) if len(heights) > 1 else np.array([75.0])
    gaps = np.flatnonzero(np.isnan(heights))
    parts = [part[~np.isnan(heights[part])] for part in np.split(np.arange(len(heights)), gaps)]
    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="'
        + " ".join(f"{x[k]:.1f},{21 - 18 * heights[k]:.1f}" for k in part)
        + '"/>'
        for part in parts
        if len(part)
    )
    return f'<svg width="150" height="24" viewBox="0 0 150 24">{lines}</svg>'
