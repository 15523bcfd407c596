"""One-dimensional histogram gauge."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Bars, Chart, Guide, Plot, View
from cockpit.instruments.histograms import gradient_edges, in_the_middle, middle_share, outside, whole
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.traces import share


class Histogram1dGauge(Instrument):
    """Histogram of all elements of all individual gradients at one step; the counts are logarithmic.

    Reading it:
        A sharp peak at zero with tails that fall off evenly to both sides is healthy. The tails widen when learning
        begins.

        Everything in the middle bins: gradients vanish, or the range is far too wide for this network. Much in the
        outermost bins or outside: gradients are large; the usual cause is data that were not normalised. One side
        heavier than the other: the outputs are biased, often only in the first steps.

        NaN and infinite elements are not drawn but counted in the notes. A single one is worth finding.
    """

    title = "Gradient Element Histogram"
    question = "What is happening in our network?"
    reads = ("grad_hist1d",)
    group = "gradients"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the bars of one moment."""
        found = whole(run, "grad_hist1d", view)
        histogram = found.value
        if histogram is None:
            raise Missing(f"At step {found.step} there is no histogram: {found.status}.")
        edges, middle = gradient_edges(histogram), middle_share(histogram.counts)
        readings, notes = outside(histogram)
        if middle > 0.999:
            text = (
                f"{share(middle)} of the elements lie in the two middle bins; a smaller range would show more"
            )
            notes = (*notes, f"{text}: GradHist1d(range=(−a, a)) or GradHist1d(adapt=GradAbsMax())")
        plot = Plot(
            (
                Guide("x", 0.0, tone="faint"),
                Bars("gradient elements", edges, histogram.counts.astype(np.float64)),
            ),
            Axis("Gradient element", range=(float(edges[0]), float(edges[-1]))),
            Axis("Count", "log"),
        )
        shown = (*in_the_middle("in the two middle bins", histogram.counts), *readings)
        said = () if found.status == "ok" else (found.status,)
        return self.made((plot,), shown, (*notes, *said), step=found.step, scope=view.scope)
