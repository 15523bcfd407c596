"""Layer histograms: gradient elements of every layer at one moment."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Chart, Floats, Guide, Heat, Plot, View
from cockpit.instruments.histograms import Moment, gradient_edges, moment
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.layer_table import largest_of_each, parameters


class LayerHistograms(Instrument):
    """Histograms of the gradient elements of each layer (rows, the first on top) at one step.

    Reading it:
        Each row is a histogram seen from above: the stronger the colour of a cell, the larger the share of that layer's
        elements in it, on a logarithmic scale. Only the bins in use are shown.

        Rows of similar width are healthy. A row that is a single strong cell in the middle: its gradients vanish, or
        are too small for the bins. Rows that get narrower from bottom to top: they vanish on the way back.

        A row that reaches the border of the range: its gradients are too large, or the range is too small.
    """

    title = "Gradient Histograms by Layer"
    question = "Which layers see which gradients?"
    reads = ("grad_hist1d",)
    group = "layers"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return one row for each layer."""
        names, notes = largest_of_each(run, parameters(run, "grad_hist1d", view.scope))
        lead = moment(run, "grad_hist1d", names[0], view.step)
        rows = [lead, *(moment(run, "grad_hist1d", name, lead.step) for name in names[1:])]
        there = [
            (name, row)
            for name, row in zip(names, rows, strict=True)
            if row.value is not None and row.step == lead.step
        ][::-1]
        if not there:
            raise Missing(f"At step {lead.step} there are no histograms: {lead.status}.")
        edges, shares = _shares([row for _, row in there])
        labels = tuple(name for name, _ in there)
        bad = [name for name, row in there if row.value is not None and row.value.nan + row.value.inf]
        if bad:
            notes = (*notes, f"{len(bad)} of {len(labels)} layers have elements that are not finite")
        heat = Heat("share of elements", edges, np.arange(len(labels) + 1, dtype=np.float64), shares, "log")
        plot = Plot(
            (heat, Guide("x", 0.0, tone="faint")),
            Axis("Gradient element", range=(float(edges[0]), float(edges[-1]))),
            Axis(range=(0.0, float(len(labels))), names=labels),
        )
        return self.made((plot,), (), notes, step=lead.step, scope=view.scope)


def _shares(rows: list[Moment]) -> tuple[Floats, Floats]:
    """Return the edges in use and the shares [layers, bins] between them."""
    found = [row.value for row in rows if row.value is not None]
    edges = gradient_edges(found[0])
    counts = np.stack([one.counts for one in found]).astype(np.float64)
    used = np.flatnonzero(counts.any(0))
    middle = counts.shape[1] // 2
    reach = max([4, *np.abs(used - middle + 0.5).astype(int) + 1])  # the same to both sides
    low, high = max(0, middle - reach), min(counts.shape[1], middle + reach)
    shares = counts / np.maximum(1.0, [[one.total] for one in found])
    return edges[low : high + 1], shares[:, low:high]
