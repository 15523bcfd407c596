"""Trace gauge: the sum of all curvature."""

from __future__ import annotations

import numpy as np

from cockpit.errors import CockpitError
from cockpit.instruments.chart import Band, Chart, Line, Mark, Plot, View
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.traces import STEPS, Trace, axis, trace


class TraceGauge(Instrument):
    """Trace of the Hessian: the curvature summed over all directions.

    Reading it:
        Beside the largest eigenvalue it tells whether the landscape is sharp in one direction or in many: if the
        eigenvalue rises and the trace does not, a single gorge is getting steeper.

        Deep networks see it rise by one or two orders of magnitude early in training and settle later. For a quadratic
        problem it is constant.

        A trace that keeps growing goes with ever sharper minima and with learning rates that become too large. Where
        it was estimated, the band is one standard error to either side.
    """

    title = "Trace"
    question = "How curved is the landscape on average?"
    reads = ("hess_trace",)
    group = "curvature"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the trace over the steps, with its standard error where it is known."""
        found = trace(run, "hess_trace", view, "sums")
        line = found.line("trace", view)
        marks: tuple[Mark, ...] = (*_error(run, found, line, view), line, *found.ticks())
        plot = Plot(marks, STEPS, axis("Trace of the Hessian", line))
        return self.made((plot,), (found.reading("trace", view.step),), found.notes(), scope=view.scope)


def _error(run: Source, found: Trace, line: Line, view: View) -> tuple[Band, ...]:
    """Return the standard error as a band; none for a layer of several parameters, whose errors are not independent."""
    try:
        error = trace(run, "hess_trace.standard_error", view)
    except (Missing, CockpitError):  # exact, or a single draw
        return ()
    if not np.array_equal(error.steps, found.steps) or not np.nanmax(error.values, initial=0.0) > 0:
        return ()
    at = np.searchsorted(error.steps, line.x).clip(0, len(error.steps) - 1)
    width = error.values[at]
    return (Band("± standard error", line.x, line.y - width, line.y + width),)
