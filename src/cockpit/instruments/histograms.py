"""Histograms at one moment: found without reading the others, which in a long run are thousands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cockpit.instruments.chart import Floats, Reading, View
from cockpit.instruments.instrument import Missing, Source
from cockpit.instruments.traces import scopes, share
from cockpit.store.record import Histogram
from cockpit.store.series import Series


@dataclass(frozen=True, eq=False)
class Moment:
    """A histogram, or what there is in its place, at the step at which it was recorded."""

    step: int
    value: Histogram | None
    status: str


def moment(run: Source, name: str, scope: str, step: int | None) -> Moment:
    """Return the histogram nearest at or before a step, else the first; None: the newest."""
    if step is None:
        return _taken(run.series(name, scope, points=2), name, -1)

    def first(since: int) -> Moment | None:
        found = run.series(name, scope, since, points=1)
        return _taken(found, name, 0) if len(found) else None

    best, since, back = first(step), step, 1
    while best is None or best.step > step:  # go back ever further until something lies before
        if since <= 0:
            return best or _none(name)
        since, back = max(0, step - back), 4 * back
        best = first(since)
    low, high = best.step, step
    while low < high:  # and forward again, halving what is left
        middle = (low + high + 1) // 2
        found = first(middle)
        if found is not None and found.step <= step:
            best, low = found, found.step
        else:
            high = middle - 1
    return best


def whole(run: Source, name: str, view: View) -> Moment:
    """Return the histogram of the model, of a parameter, or summed over those of a layer."""
    names = scopes(run, name, view.scope, "sums")
    lead = moment(run, name, names[0], view.step)
    parts = [lead, *(moment(run, name, one, lead.step) for one in names[1:])]
    found = [part.value for part in parts if part.value is not None and part.step == lead.step]
    if not found:
        raise Missing(f'At step {lead.step} there is no "{name}": {lead.status}.')
    total = Histogram(
        np.sum([part.counts for part in found], axis=0),
        found[0].edges,
        *(sum(getattr(part, word) for part in found) for word in ("underflow", "overflow", "nan", "inf")),
    )
    return Moment(lead.step, total, lead.status)


def outside(histogram: Histogram) -> tuple[tuple[Reading, ...], tuple[str, ...]]:
    """Return the shares of elements that are not drawn, and notes about them."""
    beyond, total = histogram.underflow + histogram.overflow, max(1, histogram.total)
    bad = histogram.nan + histogram.inf
    readings, notes = [Reading("outside of the range", beyond / total, share(beyond / total))], []
    if beyond:
        notes.append(
            f"{beyond} of {total} elements lie outside of the range ({histogram.underflow} below, "
            f"{histogram.overflow} above)"
        )
    if bad:
        readings.insert(0, Reading("not finite", bad / total, share(bad / total)))
        notes.append(f"{histogram.nan} elements are NaN, {histogram.inf} are infinite")
    return tuple(readings), tuple(notes)


def gradient_edges(histogram: Histogram) -> Floats:
    """Return the edges of the gradient's axis, the first of two."""
    edges = histogram.edges
    return edges[0] if isinstance(edges, tuple) else edges


def in_the_middle(words: str, counts: npt.NDArray[np.int64]) -> tuple[Reading, ...]:
    """Return the share of the two middle bins; none where nothing was counted."""
    part = middle_share(counts)
    return (Reading(words, part, share(part)),) if counts.any() else ()


def middle_share(counts: npt.NDArray[np.int64]) -> float:
    """Return the share of what lies in the two middle bins."""
    half = len(counts) // 2
    return float(counts[max(0, half - 1) : half + 1].sum() / max(1, counts.sum()))


def _taken(series: Series, name: str, place: int) -> Moment:
    if not len(series):
        _none(name)
    value = series.values[place]
    found = value if isinstance(value, Histogram) else None
    return Moment(int(series.steps[place]), found, series.status[place])


def _none(name: str) -> Moment:
    raise Missing(f'This run has no "{name}" so far.')
