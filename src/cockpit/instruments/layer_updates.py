"""Layer updates: how much each layer moves, over the whole training."""

from __future__ import annotations

from cockpit.instruments.chart import Chart, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.layer_heat import COLUMNS, heat_map
from cockpit.instruments.layer_table import layer_table


class LayerUpdates(Instrument):
    """Root mean square change of an element of each layer in one step, over the steps, on a logarithmic colour scale.

    Reading it:
        The size of an update is divided by the root of the number of elements, so that large and small layers compare.
        Rows of similar colour move alike.

        A faint row does not move: frozen, without a gradient, or with a learning rate of its own that is too small. A
        strong row moves more than the others; if the loss is unstable, begin there.

        With Adam and its relatives all rows look alike, whatever the gradients: that is what they are made for. With
        SGD the rows follow the gradient norms.
    """

    title = "Update Size by Layer"
    question = "Which layers move?"
    reads = ("update_size",)
    group = "layers"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return layers over steps."""
        table = layer_table(run, "update_size", view, per_element=True)
        plot, readings, notes = heat_map(table, "change of an element", min(view.points, COLUMNS))
        return self.made((plot,), readings, notes, scope=view.scope)
