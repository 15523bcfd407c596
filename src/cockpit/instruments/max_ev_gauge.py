"""Max eigenvalue gauge: how sharp the valley is, and how sharp it may be for the learning rate."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.chart import Chart, Floats, Guide, Line, Mark, Plot, View
from cockpit.instruments.instrument import Instrument, Missing, Source
from cockpit.instruments.traces import STEPS, Trace, axis, number, trace


class MaxEVGauge(Instrument):
    """Largest eigenvalue of the Hessian: the curvature in the sharpest direction.

    Reading it:
        A large value is a gorge: the loss rises steeply as soon as one steps sideways. A small one is a lake: wide and
        flat. The absolute number depends on loss and model; look at how it changes.

        For gradient descent steps along the sharpest direction grow instead of shrink beyond the stability bound, 2
        divided by the learning rate (momentum raises it). Training often climbs up to that bound and stays there. A
        value well beyond it means that the loss is about to jump: lower the learning rate.

        A drop within the first steps while nothing else moves, and a jump afterwards, is the network leaving its
        initialisation. Negative values: the loss bends downwards in every direction, far from any minimum.
    """

    title = "Max Eigenvalue"
    question = "A gorge or a lake?"
    reads = ("hess_max_ev",)
    group = "curvature"
    layered = True

    def draw(self, run: Source, view: View) -> Chart:
        """Return the eigenvalue over the steps on a logarithmic axis."""
        if view.scope and run.scopes("hess_max_ev") == [""]:
            how = "HessMaxEV(by_parameter=True), at the price of one solve for each parameter"
            raise Missing(f'This run has no "hess_max_ev" of {view.scope!r}. To record it: {how}.')
        sharp = trace(run, "hess_max_ev", view)
        line = sharp.line("max eigenvalue", view)
        marks: list[Mark] = [line, *sharp.ticks()]
        readings = [sharp.reading("max eigenvalue", view.step)]
        bound = None if view.scope else _bound(run, view)
        if bound is not None:
            name, rates = bound
            limits = Trace("bound", rates.steps, _limit(run, rates.values), rates.status)
            marks.append(_guide(name, limits, view, float(np.nanmax(line.y, initial=0.0))))
            readings.append(limits.reading("stability bound", view.step))
        plot = Plot(tuple(marks), STEPS, axis("Max eigenvalue", line, log=True))
        return self.made((plot,), tuple(readings), sharp.notes(), scope=view.scope)


def _bound(run: Source, view: View) -> tuple[str, Trace] | None:
    """Return the bound's name and the learning rates; None where no such bound is known for the optimiser."""
    if run.meta.get("optimizer") != "SGD" or "learning_rate" not in run.names():
        return None
    try:
        rates = trace(run, "learning_rate", view)
    except Missing:
        return None
    return ("2(1+β)/lr" if _momentum(run)[0] else "2/lr"), rates


def _momentum(run: Source) -> tuple[float, bool]:
    groups = run.meta.get("hyperparameters") or [{}]
    return float(groups[0].get("momentum") or 0.0), bool(groups[0].get("nesterov"))


def _limit(run: Source, rates: Floats) -> Floats:
    """Return the curvature up to which steps along it shrink: of a parabola, for SGD with momentum or Nesterov's."""
    beta, nesterov = _momentum(run)
    with np.errstate(divide="ignore"):
        return np.asarray(2 * (1 + beta) / (rates * (1 + 2 * beta * nesterov)))


def _guide(name: str, limits: Trace, view: View, highest: float) -> Mark:
    """Return a straight line where the learning rate is constant, else the part of the curve that is not far above."""
    values = limits.values[np.isfinite(limits.values)]
    if not len(values) or np.ptp(values) < 1e-9 * values.max():
        at = float(values[0]) if len(values) else float("nan")
        return Guide("y", at, f"{name} = {number(at)}: beyond it, steps overshoot", "bad")
    line = limits.line(f"{name}: beyond it, steps overshoot", view, "bad", smooth=False)
    near = np.where(line.y <= 100 * highest, line.y, np.nan)
    return Line(line.label, line.x, near, "bad", dashed=True)
