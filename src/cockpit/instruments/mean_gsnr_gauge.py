"""Mean GSNR gauge."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class MeanGSNRGauge(Instrument):
    """Mean signal-to-noise ratio of the gradient's elements.

    Reading it:
        For each parameter the squared mean gradient is divided by the variance of the individual gradients; the gauge
        shows the average. A large value means that the examples agree on where to go: what is learnt from one helps
        with the others, which is what generalisation is.

        It is highest early in training and falls as the easy common structure has been learnt. A fall to near zero
        while the training loss still falls means that examples are learnt one by one: overfitting.

        Near zero from the very beginning: labels or inputs carry no common signal; check the data.
    """

    title = "Mean GSNR"
    question = "Do the examples agree?"
    reads = ("mean_gsnr",)
    group = "auxiliary"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the ratio over the steps."""
        plot, readings, notes = curves(run, view, Curve("mean_gsnr", "mean GSNR", "Mean GSNR"))
        return self.made((plot,), readings, notes, scope=view.scope)
