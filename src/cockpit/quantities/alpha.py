"""The noise-aware step length."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from torch import finfo

from cockpit.engine.derived import Length
from cockpit.engine.needs import Known
from cockpit.engine.statistics import Direction, Projection
from cockpit.errors import Gap
from cockpit.quantities.quantity import Array, Observation, Quantity, Reading, reading
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
    stretches = True

    @np.errstate(divide="ignore", invalid="ignore", over="ignore")
    def compute(self, o: Observation) -> Reading:
        after = o.following
        assert after is not None
        o.insist(HERE, "slopes")
        o.insist(STEP, "updates")
        names, each = _by_parameter(o, after)
        moved = o.statistics.stacked(STEP)[1].any(-1)
        if not moved.all():
            if moved.ndim:
                raise Gap("zero_step: not all steps of a stretch moved")
            return Reading(-1.0, Numbers(names, each), "zero_step: the optimiser did not move")
        o.statistics.total_exists(HERE)
        after.statistics.total_exists(THERE)
        slopes0, slopes1 = o.statistics.stacked(HERE)[1].sum(-2), after.statistics.stacked(THERE)[1].sum(-2)
        d0, d1 = _mean(slopes0), _mean(slopes1)
        enough = min(slopes0.shape[-1], slopes1.shape[-1]) > 1
        status = np.array("slopes_only: no variances or no losses")
        if enough and Known.LOSSES in o.known and Known.LOSSES in after.known:
            losses0, losses1 = o.losses.numpy(), after.losses.numpy()
            epsilon = finfo(o.statistics.dtype).eps
            v = np.stack([_variance_of_mean(x, epsilon) for x in (losses0, losses1, slopes0, slopes1)])
            agree = v.sum(0) == 0
            v = np.where(agree, 1.0, v)
            c = _mean(losses1) - _mean(losses0) - 0.5 * (d0 + d1)
            ratio = c / (v[0] + v[1] + 0.25 * (v[2] + v[3]))
            d0, d1 = d0 + 0.5 * v[2] * ratio, d1 + 0.5 * v[3] * ratio
            status = np.where(agree, "noise_free: all examples agree", "ok")
        ends = (np.ravel(x).tolist() for x in np.broadcast_arrays(d0, d1, status))
        places = [_place(*end) for end in zip(*ends, strict=True)]
        alpha = np.array([place for place, _ in places]).reshape(d0.shape)
        return reading(alpha, names, each, [word for _, word in places], slope_start=d0, slope_end=d1)


def _mean(x: Array) -> Array:
    return np.asarray(x.sum(-1) / x.shape[-1])


def _variance_of_mean(x: Array, epsilon: float) -> Array:
    """Return the variance of the mean; what rounding alone explains is none."""
    n = x.shape[-1]
    off = x - _mean(x)[..., None]
    variance = (off * off).sum(-1) / (n - 1)
    rounding = 16 * epsilon * np.abs(x).max(-1)
    return np.where(variance <= rounding**2, 0.0, variance / n)


def _place(d0: float, d1: float, status: str) -> tuple[float, str]:
    """Return the place on a parabola of which the slopes at both ends are known."""
    if d1 < d0:
        return nan, "concave: the fitted parabola has no minimum"
    if d0 == 0:
        return nan, "flat: the fitted slope at the start vanishes"
    if d0 > 0 and status == "ok":
        status = "uphill: the fitted minimum lies behind the start"
    return -d1 / d0, status


def _by_parameter(o: Observation, after: Observation) -> tuple[tuple[str, ...], Array]:
    """Return minus the ratio of the slopes, −1 where a parameter stood still."""
    names, here = o.statistics.stacked(HERE)
    names_after, there = after.statistics.stacked(THERE)
    d0, d1 = _mean(here), _mean(there) if there.size else np.zeros(0)
    if names != names_after:
        place = {name: k for k, name in enumerate(names_after)}
        both = [k for k, name in enumerate(names) if name in place]
        d1 = d1[..., [place[names[k]] for k in both]]
        names, d0 = tuple(names[k] for k in both), d0[..., both]
    moving, lengths = o.statistics.stacked(STEP)
    if moving != names:
        places = {name: k for k, name in enumerate(moving)}
        known = np.concatenate([lengths, np.zeros((*lengths.shape[:-1], 1))], -1)
        lengths = known[..., [places.get(name, -1) for name in names]]
    ratio = -d1 / d0
    ratio[d0 == 0] = nan
    ratio[~(lengths > 0)] = -1.0
    return names, ratio
