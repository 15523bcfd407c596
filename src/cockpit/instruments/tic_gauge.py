"""TIC gauge: curvature and gradient noise together."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.curves import Curve, curves
from cockpit.instruments.instrument import Instrument, Source


class TICGauge(Instrument):
    """Takeuchi information criterion: gradient noise weighed by curvature, an estimate of the generalisation gap.

    Reading it:
        At a minimum it estimates how much higher the loss on new data is than on the training data. During training
        only its course means something: falling is good, rising while the training loss falls is a sign of
        overfitting.

        The diagonal form divides by each parameter's own curvature and is dominated by flat directions, in which it
        can be very large; the trace form divides by the sum and is calmer. Compare one form with itself only.

        Sudden spikes of the diagonal form are mostly curvature that came close to zero; its notes then say
        ill_conditioned.
    """

    title = "TIC"
    question = "How do curvature and noise interact?"
    reads = ("tic_diag", "tic_trace")
    optional = ("tic_diag", "tic_trace")
    group = "curvature"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return one form, or the diagonal one on the left and the trace one on the right axis."""
        forms = [
            Curve("tic_diag", "diagonal", "TIC, diagonal", "sums"),
            Curve("tic_trace", "trace form", "TIC, trace form"),
        ]
        there = run.names()
        forms = [form for form in forms if form.name in there]
        if view.scope:
            forms = forms[:1]  # the trace form is one of the whole model
        plot, readings, notes = curves(run, view, *forms)
        return self.made((plot,), readings, notes, scope=view.scope)
