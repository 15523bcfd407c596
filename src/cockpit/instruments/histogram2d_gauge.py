"""Two-dimensional histogram gauge."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Bars, Chart, Guide, Heat, Plot, View
from cockpit.instruments.histograms import in_the_middle, outside, whole
from cockpit.instruments.instrument import Instrument, Missing, Source


class Histogram2dGauge(Instrument):
    """Joint histogram of parameters (across) and the elements of their individual gradients (upwards) at one step.

    Reading it:
        Each cell counts pairs of a parameter's value and a gradient element; the stronger its colour the more, on a
        logarithmic scale.
        The histograms at the edges are the sums of columns and rows.

        A compact cloud around the origin, a little taller than it is wide or the other way round, is healthy. Large
        gradients should belong to parameters of all sizes.

        A horizontal line at zero: parameters that get no gradient. A cloud that touches the upper and lower border:
        gradients too large for the range, often data that were not normalised. Structure that looks like arms or
        several clouds belongs to different layers: choose one to see it alone.
    """

    title = "Gradient/Parameter Histogram"
    question = "What is happening in our network, and at which parameters?"
    reads = ("grad_hist2d",)
    group = "gradients"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the map of one moment and its marginals."""
        found = whole(run, "grad_hist2d", view)
        histogram = found.value
        if histogram is None or not isinstance(histogram.edges, tuple):
            raise Missing(f"At step {found.step} there is no histogram of two axes: {found.status}.")
        gradient, parameter = histogram.edges
        counts = histogram.counts.astype(np.float64)
        up = Axis("Gradient element", range=(float(gradient[0]), float(gradient[-1])))
        across = Axis("Parameter", range=(float(parameter[0]), float(parameter[-1])))
        zeros = Guide("x", 0.0, tone="faint"), Guide("y", 0.0, tone="faint")
        count = Axis("Count", "log")
        plots = (
            Plot((Heat("count", parameter, gradient, counts, "log"), *zeros), across, up),
            Plot((Bars("parameters", parameter, counts.sum(0), "second"),), across, count, place="top"),
            Plot((Bars("gradients", gradient, counts.sum(1), flat=True),), count, up, place="right"),
        )
        readings, notes = outside(histogram)
        shown = (*in_the_middle("in the two middle rows", histogram.counts.sum(1)), *readings)
        said = () if found.status == "ok" else (found.status,)
        return self.made(plots, shown, (*notes, *said), step=found.step, scope=view.scope)
