"""CABS gauge."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class CABSGauge(Instrument):
    """Batch size that would balance gradient noise against progress, by the CABS criterion.

    Reading it:
        The suggestion is the learning rate times the gradient variance divided by the loss. Compare it with the batch
        size that you use: far above it, steps are noisier than they pay for; far below, examples are wasted.

        It grows during most trainings, because the loss falls and the noise does not: many small batches early and few
        large ones late is the cheap order.

        The criterion was derived for plain SGD. With other optimisers, whose learning rate has another meaning, only
        its course counts; the notes say so.
    """

    title = "CABS"
    question = "Which batch size would pay?"
    reads = ("cabs",)
    group = "auxiliary"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the suggestion over the steps."""
        curve = Curve("cabs", "suggested batch size", "Suggested batch size", "sums")
        plot, readings, notes = curves(run, view, curve)
        return self.made((plot,), readings, notes, scope=view.scope)
