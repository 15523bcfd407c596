"""Layer norms: the profile of gradient norms through the network at one moment."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Bars, Chart, Mark, Plot, Reading, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.layer_table import layer_table
from cockpit.instruments.traces import number


class LayerNorms(Instrument):
    """Gradient norm of each layer at one step, and its median over all steps shown.

    Reading it:
        The first layer is on top. Bars of similar length are healthy; a factor of ten between layers is common, a
        factor of a thousand is not.

        Bars that shrink towards the top: gradients vanish on the way back. A layer without a bar gets no gradient at
        all.

        A bar far longer or shorter than the median: this step is unusual for that layer. If one layer alone is
        unusual, look at it; if all are, look at the batch.
    """

    title = "Gradient Norms now"
    question = "Where does the signal end?"
    reads = ("grad_norm",)
    group = "layers"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return bars that lie on their side, one for each layer."""
        table = layer_table(run, "grad_norm", view)
        steps = table.steps
        place = len(steps) if view.step is None else int(np.searchsorted(steps, view.step, side="right"))
        place = max(0, place - 1)
        names, now = table.names[::-1], table.values[::-1, place]
        shown = np.where(np.isfinite(table.values[::-1]), table.values[::-1], np.nan)
        usual = np.array(
            [np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in shown]
        )
        places = np.arange(len(names) + 1, dtype=np.float64)
        marks: tuple[Mark, ...] = (
            Bars("median", places, usual, "neutral", flat=True),
            Bars("this step", places, np.where(np.isfinite(now), now, np.nan), flat=True),
        )
        plot = Plot(marks, Axis("Gradient norm", "log"), Axis(range=(0.0, float(len(names))), names=names))
        notes = list(table.notes)
        bad = [name for name, value in zip(names, now.tolist(), strict=True) if not np.isfinite(value)]
        if bad:
            more = ", …" if len(bad) > 5 else ""
            notes.append(f"not finite in {len(bad)} of {len(names)} layers: {', '.join(bad[:5])}{more}")
        ratio = _ratio(now)
        readings = (Reading("largest to smallest", ratio, number(ratio)),)
        return self.made((plot,), readings, tuple(notes), step=int(steps[place]), scope=view.scope)


def _ratio(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    positive = values[np.isfinite(values) & (values > 0)]
    return float(positive.max() / positive.min()) if len(positive) else float("nan")
