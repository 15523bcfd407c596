"""Layer heat map: gradient norms of all layers over the whole training."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Chart, Floats, Heat, Plot, Reading, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.layer_table import LayerTable, columns, layer_table
from cockpit.instruments.traces import STEPS, number

COLUMNS = 300


class LayerHeat(Instrument):
    """Gradient norm of each layer (rows, the first on top) over the steps, on a logarithmic colour scale.

    Reading it:
        Rows of similar colour are healthy: every layer gets a signal of the same order. Biases are often somewhat
        weaker than weights.

        Colours that fade from the bottom to the top: gradients vanish on their way back through the network; better
        initialisation, normalisation or residual connections help. Colours that grow: they explode.

        One faint row among strong ones is a layer that does not learn: frozen, cut off, or all its units dead. A
        vertical stripe is a moment at which something happened to all layers. Holes are values that are not finite, or
        that were not recorded.
    """

    title = "Gradient Norm by Layer"
    question = "Which layers get a signal?"
    reads = ("grad_norm",)
    group = "layers"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return layers over steps."""
        table = layer_table(run, "grad_norm", view)
        plot, readings, notes = heat_map(table, "gradient norm", min(view.points, COLUMNS))
        return self.made((plot,), readings, notes, scope=view.scope)


def heat_map(table: LayerTable, words: str, count: int) -> tuple[Plot, tuple[Reading, ...], tuple[str, ...]]:
    """Return a table as a map with the first layer on top, the ratio of the extremes, and notes."""
    edges, values = columns(table, count)
    notes = list(table.notes)
    bad = ~np.isfinite(table.values)
    if bad.any():
        notes.append(
            f"{int(bad.any(1).sum())} of {len(bad)} rows have values that are not finite or not recorded"
        )
    floor = values[values > 0].min(initial=np.inf)
    zeros = values == 0
    if zeros.any() and np.isfinite(floor):
        notes.append(
            f"{int(zeros.any(1).sum())} rows are exactly zero at times; they are drawn as the weakest"
        )
        values = np.where(zeros, 0.1 * floor, values)
    names = table.names[::-1]
    marks = (Heat(words, edges, np.arange(len(names) + 1, dtype=np.float64), values[::-1], "log"),)
    plot = Plot(marks, STEPS, Axis(range=(0.0, float(len(names))), names=names))
    return plot, _extremes(table.names, table.values[:, -1]), tuple(notes)


def _extremes(names: tuple[str, ...], values: Floats) -> tuple[Reading, ...]:
    """Return the smallest and the largest value of the last step."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return ()
    low, high = finite[values[finite].argmin()], finite[values[finite].argmax()]
    return tuple(
        Reading(f"{word}, {names[k]}", float(values[k]), number(float(values[k])))
        for word, k in (("smallest", low), ("largest", high))
    )
