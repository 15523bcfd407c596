"""The noise-aware step length."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from torch import finfo

from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Direction, Projection
from cockpit.quantities.noise import Array
from cockpit.quantities.quantity import Observation, Quantity, Reading
from cockpit.store.record import Numbers

STEP = Length(Known.UPDATES)
HERE, THERE = Projection(Direction.UPDATE), Projection(Direction.LAST_UPDATE)


@dataclass(frozen=True, eq=False)
class Alpha(Quantity):
    r"""Step length: −1 no step, 0 to the minimum of a parabola fitted along the step, 1 as high on the other side.

    Losses $f_0, f_1$ and slopes $d_0, d_1$ at both ends of the step, with variances $v$ of their means, obey
    $f_1 - f_0 = (d_0 + d_1)/2$ on a parabola. Correcting the slopes for the violation
    $c = f_1 - f_0 - \frac12(d_0+d_1)$, $V = v_{f0}+v_{f1}+\frac14(v_{d0}+v_{d1})$, gives the weighted least-squares fit
    in closed form: $\tilde d_i = d_i + \frac12 v_{di}\,c/V$ and $\alpha = -\tilde d_1/\tilde d_0$.
    By parameter, from slopes alone. Known one step later (Schneider et al., 2021); a concave fit has no
    minimum and gives NaN.
    """

    needs = (Known.LOSSES, STEP, HERE)
    needs_after = (Known.LOSSES, THERE)

    def compute(self, o: Observation) -> Reading:
        after = o.following
        assert after is not None
        o.insist(HERE, "slopes")
        o.insist(STEP, "updates")
        each = _by_parameter(o, after)
        if not o.statistics.stacked(STEP)[1].any():
            return Reading(-1.0, each, "zero_step: the optimiser did not move")
        o.statistics.total_exists(HERE)
        after.statistics.total_exists(THERE)
        slopes0, slopes1 = o.statistics.stacked(HERE)[1].sum(0), after.statistics.stacked(THERE)[1].sum(0)
        d0, d1 = float(slopes0.sum()) / len(slopes0), float(slopes1.sum()) / len(slopes1)
        enough = min(len(slopes0), len(slopes1)) > 1
        if not enough or Known.LOSSES not in o.known or Known.LOSSES not in after.known:
            return _reading(d0, d1, each, "slopes_only: no variances or no losses")
        status = "ok"
        losses0, losses1 = o.losses.numpy(), after.losses.numpy()
        epsilon = finfo(o.statistics.dtype).eps
        v = [_variance_of_mean(x, epsilon) for x in (losses0, losses1, slopes0, slopes1)]
        rise = float(losses1.sum()) / len(losses1) - float(losses0.sum()) / len(losses0)
        c = rise - 0.5 * (d0 + d1)
        if sum(v) == 0:
            status, v = "noise_free: all examples agree", [1.0, 1.0, 1.0, 1.0]
        ratio = c / (v[0] + v[1] + 0.25 * (v[2] + v[3]))
        return _reading(d0 + 0.5 * v[2] * ratio, d1 + 0.5 * v[3] * ratio, each, status)


def _variance_of_mean(x: Array, epsilon: float) -> float:
    """Return the variance of the mean; what rounding alone explains is none."""
    n = len(x)
    off = x - x.sum() / n
    variance = float(off @ off) / (n - 1)
    rounding = 16 * epsilon * max(float(x.max()), -float(x.min()))
    return 0.0 if variance <= rounding**2 else variance / n


def _reading(d0: float, d1: float, each: Numbers, status: str) -> Reading:
    more = {"slope_start": d0, "slope_end": d1}
    if d1 < d0:
        return Reading(nan, each, "concave: the fitted parabola has no minimum", more)
    if d0 == 0:
        return Reading(nan, each, "flat: the fitted slope at the start vanishes", more)
    if d0 > 0 and status == "ok":
        status = "uphill: the fitted minimum lies behind the start"
    return Reading(-d1 / d0, each, status, more)


def _by_parameter(o: Observation, after: Observation) -> Numbers:
    """Return minus the ratio of the slopes, −1 where a parameter stood still."""
    names, here = o.statistics.stacked(HERE)
    names_after, there = after.statistics.stacked(THERE)
    d0, d1 = here.sum(1) / here.shape[1], there.sum(1) / there.shape[1] if there.size else np.zeros(0)
    if names != names_after:
        place = {name: k for k, name in enumerate(names_after)}
        both = [k for k, name in enumerate(names) if name in place]
        names, d0, d1 = tuple(names[k] for k in both), d0[both], d1[[place[names[k]] for k in both]]
    moving, lengths = o.statistics.stacked(STEP)
    if moving != names:
        steps = dict(zip(moving, lengths.tolist(), strict=True))
        lengths = np.array([steps.get(name, 0.0) for name in names])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = -d1 / d0
    ratio[d0 == 0] = nan
    ratio[~(lengths > 0)] = -1.0
    return Numbers(names, ratio)
