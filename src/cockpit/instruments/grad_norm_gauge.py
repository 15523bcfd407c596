"""Gradient norm gauge."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class GradNormGauge(Instrument):
    """Norm of the mean gradient, before any clipping.

    Reading it:
        A convex problem sees the norm fall. A deep network often sees it rise during training while the loss falls:
        the steep walls are reached later. Both are normal; what matters is that it changes slowly.

        Sudden jumps by factors of ten, or growth without end: steps are too long or the data hold something unusual;
        a smaller learning rate, a warm-up or clipping at a little above the usual norm helps.

        A norm near zero while the loss is high: the signal is lost on the way. Look at the layers screen for where it
        ends. Marks at the foot are steps at which the norm was not a number.
    """

    title = "Gradient Norm"
    question = "How steep is the wall?"
    reads = ("grad_norm",)
    group = "step size"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the norm over the steps."""
        curve = Curve("grad_norm", "gradient norm", "Gradient norm", "norms")
        plot, readings, notes = curves(run, view, curve)
        return self.made((plot,), readings, notes, scope=view.scope)
