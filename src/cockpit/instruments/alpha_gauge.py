"""Alpha gauge: how far across the valley the steps go."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Axis, Bars, Chart, Floats, Guide, Line, Mark, Plot, Reading, View
from cockpit.instruments.instrument import Instrument, Source
from cockpit.instruments.traces import Trace, number, share, trace
from cockpit.store.status import Texts

EDGES = np.linspace(-1.5, 1.5, 31)


class AlphaGauge(Instrument):
    """Distribution of the normalised step length α: of all steps so far, and of the last tenth of them.

    Reading it:
        Along each step the loss is fitted by a parabola. α says where on it the step ended: −1 is where it started,
        0 the lowest point, +1 the other side of the valley, as high as before. The curve is that parabola.

        Around 0 each step goes as far as it pays on its own batch. Values somewhat above 0 are common in runs that end
        well: overshooting a little explores.

        Nearly all values close to −1: the steps are far too short, training is slower than it needs to be. Try a
        larger learning rate. Many values beyond +1: steps leave the valley higher than they entered it. Try a smaller
        one.

        Concave steps have no lowest point; they are counted, not drawn. A few are normal at the beginning.
    """

    title = "Alpha Distribution"
    question = "Are we crossing the valley?"
    reads = ("alpha",)
    group = "step size"
    moment = True
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the histograms over the unit parabola."""
        alpha = trace(run, "alpha", view).until(view.step)
        values, last = alpha.values, alpha.values[-max(1, len(alpha.values) // 10) :]
        x = np.linspace(-1.5, 1.5, 61)
        marks: list[Mark] = [
            Line("parabola", x, x**2, "second"),
            Guide("x", -1.0, "start"),
            Guide("x", 0.0, "minimum"),
            Guide("x", 1.0, "as high again"),
            Bars("all steps", EDGES, _shares(values), "neutral", right=True),
        ]
        readings = [_mean("mean", values)]
        if len(values) >= 10:
            marks.append(Bars("last 10 %", EDGES, _shares(last), "first", right=True))
            readings.append(_mean("last 10 %", last))
        now = float(values[-1])
        if abs(now) <= 1.5:
            marks.append(Guide("x", now, "", "first"))
        concave = _concave(alpha)
        readings += [alpha.reading("this step"), Reading("concave", concave, share(concave))]
        plot = Plot(
            tuple(marks),
            Axis("Local step length α", range=(-1.5, 1.5)),
            Axis("Standardised loss", range=(0.0, 1.75)),
            Axis("Share of steps"),
        )
        notes = (*alpha.notes(), *_outside(values))
        return self.made((plot,), tuple(readings), notes, step=int(alpha.steps[-1]), scope=view.scope)


def _shares(values: Floats) -> Floats:
    finite = values[np.isfinite(values)]
    return np.asarray(np.histogram(finite, EDGES)[0] / max(1, len(finite)))


def _mean(label: str, values: Floats) -> Reading:
    finite = values[np.isfinite(values)]
    mean = float(finite.mean()) if len(finite) else float("nan")
    return Reading(label, mean, number(mean, "+.2f"))


def _concave(alpha: Trace) -> float:
    counts = Texts.of(alpha.status).counts()
    return sum(count for text, count in counts.items() if text.startswith("concave")) / len(alpha.values)


def _outside(values: Floats) -> tuple[str, ...]:
    beyond = values[np.abs(values) > 1.5]
    if not len(beyond):
        return ()
    ends = f"from {number(float(beyond.min()))} to {number(float(beyond.max()))}"
    return (f"{len(beyond)} of {len(values)} values lie outside of what is shown, {ends}",)
