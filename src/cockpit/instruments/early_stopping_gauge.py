"""Early stopping gauge."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, Guide, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class EarlyStoppingGauge(Instrument):
    """Evidence that the gradient is nothing but noise: above zero, training may stop.

    Reading it:
        The criterion compares each element of the gradient with its standard error. Far below zero there is a clear
        signal and more to learn. Around and above zero the gradient cannot be told from the chance of which examples
        were drawn, so further steps fit noise.

        It needs no validation data. Single values scatter; wait until the smoothed curve stays above zero.

        Above zero right from the start: the batch is too small to see the signal, or there is none. The criterion was
        derived for plain SGD; with other optimisers the notes say so.
    """

    title = "Early Stopping"
    question = "Is there anything left to learn?"
    reads = ("early_stopping",)
    group = "auxiliary"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the criterion over the steps, and the line at zero."""
        curve = Curve("early_stopping", "criterion", "Early-stopping criterion")
        guide = Guide("y", 0.0, "stop above", "bad")
        plot, readings, notes = curves(run, view, curve, marks=(guide,))
        return self.made((plot,), readings, notes, scope=view.scope)
