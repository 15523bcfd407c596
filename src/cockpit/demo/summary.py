"""What the instruments say at the end of a run, one plain sentence each, read from its file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cockpit.errors import CockpitError
from cockpit.store.record import Histogram
from cockpit.store.run import Run

LAST = 10
"""Instruments are noisy: a sentence speaks of the median of so many last readings."""


@dataclass(frozen=True)
class Finding:
    """What one instrument says; ``value`` is the number the sentence rests on."""

    instrument: str
    quantity: str
    value: float
    sentence: str


def findings(run: Run) -> list[Finding]:
    """Return a sentence for each instrument that has something to say."""
    found = [_alpha(run), _noise(run), _sharpness(run), _trace(run), _outside(run)]
    found += [_coverage(run.meta), _gaps(run)]
    return [finding for finding in found if finding is not None]


def typical(run: Run, name: str) -> float:
    """Return the median of the last finite readings of a quantity, NaN where there is none."""
    values = [v for v in _values(run, name) if isinstance(v, float) and math.isfinite(v)]
    return float(np.median(values[-LAST:])) if values else math.nan


def _values(run: Run, name: str) -> Iterator[Any]:
    try:
        yield from run.series(name).values
    except CockpitError:  # not recorded
        return


def _alpha(run: Run) -> Finding | None:
    a = typical(run, "alpha")
    if math.isnan(a):
        return None
    if a < -0.5:
        text = "Steps are short: they end well before the lowest point along their direction"
    elif a < -0.1:
        text = "Steps end a little before the lowest point along their direction"
    elif a <= 0.1:
        text = "Steps end about at the lowest point along their direction"
    elif a <= 1:
        text = "Steps go beyond the lowest point along their direction, up the other side"
    else:
        text = "Steps are long: they end higher on the other side than they began"
    meaning = "alpha is -1 without a step, 0 at that point, 1 where the other side is as high as the start"
    return Finding("step length", "alpha", a, f"{text} (alpha = {a:+.2f}; {meaning}).")


def _noise(run: Run) -> Finding | None:
    theta = typical(run, "norm_test")
    if math.isnan(theta):
        return None
    advice = (
        "more than 0.9: a larger batch would help" if theta > 0.9 else "below 0.9: the batch is large enough"
    )
    text = f"A batch's gradient is off by about {theta:.2f} times its own length ({advice})."
    return Finding("gradient noise", "norm_test", theta, text)


def _sharpness(run: Run) -> Finding | None:
    top = typical(run, "hess_max_ev")
    if math.isnan(top):
        return None
    text = f"In the sharpest direction the loss curves with {top:.3g}"
    if top > 0:
        rate = typical(run, "learning_rate")
        text += (
            f"; plain gradient descent is stable there below a learning rate of 2/{top:.3g} = {2 / top:.2g}"
        )
        text += "" if math.isnan(rate) else f" (it is {rate:.2g} now)"
    return Finding("sharpness", "hess_max_ev", top, text + ".")


def _trace(run: Run) -> Finding | None:
    trace = typical(run, "hess_trace")
    if math.isnan(trace):
        return None
    top = typical(run, "hess_max_ev")
    share = (
        f", of which the sharpest direction alone has {100 * top / trace:.0f} %" if 0 < top < trace else ""
    )
    return Finding(
        "curvature", "hess_trace", trace, f"Over all directions the curvature sums to {trace:.3g}{share}."
    )


def _outside(run: Run) -> Finding | None:
    histograms = [value for value in _values(run, "grad_hist1d") if isinstance(value, Histogram)][-LAST:]
    total = sum(h.total for h in histograms)
    if not total:
        return None
    share = sum(h.total - int(h.counts.sum()) for h in histograms) / total
    last = histograms[-1].edges
    assert isinstance(last, np.ndarray)
    text = (
        f"{100 * share:.2g} % of the elements of single examples' gradients lie outside the histogram's range"
    )
    return Finding("gradient values", "grad_hist1d", share, f"{text}, {last[0]:g} to {last[-1]:g}.")


def _coverage(meta: dict[str, Any]) -> Finding | None:
    ways = Counter(parameter["way"] for parameter in meta.get("coverage", {}).values())
    total = ways.total() - ways["frozen"]
    if not total:
        return None
    seen = total - ways["none"] - ways["unused"]
    how = ", ".join(f"{count} by {way}" for way, count in ways.most_common() if way not in ("frozen", "none"))
    text = f"Single examples' gradients are seen for {seen} of {total} parameters ({how})."
    return Finding("coverage", "coverage", seen / total, text)


def _gaps(run: Run) -> Finding | None:
    events = run.events("gap")
    if not events:
        return None
    first = f"the first at step {events[0].step}: {events[0].text}"
    return Finding("gaps", "gap", len(events), f"{len(events)} kinds of readings are missing, {first}.")
