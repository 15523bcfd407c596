"""Distance gauge: how far the training has come, and how long its steps are."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class DistanceGauge(Instrument):
    """Distance of the parameters from where they began, and the size of each step.

    Reading it:
        The distance rises quickly at first and then ever more slowly. That is normal: with noisy gradients it grows
        about like the logarithm or the root of the number of steps.

        A distance that stays near zero, or a step size that is tiny from the beginning: nothing is being learnt; look
        at the learning rate and at the gradient norm. A distance that shoots up while the loss does not fall: the
        steps are too long.

        The step size follows the learning rate. If it moves while the learning rate does not, the gradients have
        changed: look at the gradient norm.
    """

    title = "Distance"
    question = "Are we making progress?"
    reads = ("distance", "update_size")
    optional = ("distance", "update_size")
    group = "step size"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the distance on the left axis, the size of steps on the right one."""
        both = (
            Curve("distance", "distance", "Distance from the start", "norms", smooth=False),
            Curve("update_size", "step size", "Step size", "norms"),
        )
        there = run.names()
        plot, readings, notes = curves(run, view, *(curve for curve in both if curve.name in there))
        return self.made((plot,), readings, notes, scope=view.scope)
