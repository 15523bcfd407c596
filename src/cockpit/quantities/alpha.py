"""The noise-aware step length."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from torch import Tensor, finfo

from cockpit.engine.needs import Known
from cockpit.engine.statistics import Direction, Projection
from cockpit.errors import Gap
from cockpit.quantities.quantity import Number, Observation, Quantity, Reading

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

    needs = (Known.LOSSES, Known.UPDATES, HERE)
    needs_after = (Known.LOSSES, THERE)

    def compute(self, o: Observation) -> Reading:
        after = o.following
        assert after is not None
        each = _by_parameter(o, after)
        if all(not s.any() for s in o[Known.UPDATES].values()):
            return Reading(-1.0, dict.fromkeys(each, -1.0), "zero_step: the optimiser did not move")
        slopes0, slopes1 = o.statistics.total(HERE).double(), after.statistics.total(THERE).double()
        d0, d1 = float(slopes0.mean()), float(slopes1.mean())
        enough = min(len(slopes0), len(slopes1)) > 1
        if not enough or Known.LOSSES not in o.known or Known.LOSSES not in after.known:
            return _reading(d0, d1, each, "slopes_only: no variances or no losses")
        status = "ok"
        losses0, losses1 = o.losses, after.losses
        epsilon = finfo(o.statistics.dtype).eps
        v = [_variance_of_mean(x, epsilon) for x in (losses0, losses1, slopes0, slopes1)]
        c = float(losses1.mean() - losses0.mean()) - 0.5 * (d0 + d1)
        if sum(v) == 0:
            status, v = "noise_free: all examples agree", [1.0, 1.0, 1.0, 1.0]
        ratio = c / (v[0] + v[1] + 0.25 * (v[2] + v[3]))
        return _reading(d0 + 0.5 * v[2] * ratio, d1 + 0.5 * v[3] * ratio, each, status)


def _variance_of_mean(x: Tensor, epsilon: float) -> float:
    """Return the variance of the mean; what rounding alone explains is none."""
    variance = float(x.var(unbiased=True))
    return variance / len(x) if variance > (16 * epsilon * float(x.abs().amax())) ** 2 else 0.0


def _reading(d0: float, d1: float, each: dict[str, Number], status: str) -> Reading:
    more = {"slope_start": d0, "slope_end": d1}
    if d1 < d0:
        return Reading(nan, each, "concave: the fitted parabola has no minimum", more)
    if d0 == 0:
        return Reading(nan, each, "flat: the fitted slope at the start vanishes", more)
    if d0 > 0 and status == "ok":
        status = "uphill: the fitted minimum lies behind the start"
    return Reading(-d1 / d0, each, status, more)


def _by_parameter(o: Observation, after: Observation) -> dict[str, Number]:
    here, there = o.statistics.by_parameter(HERE), after.statistics.by_parameter(THERE)
    if not here:
        raise Gap("no_slopes: no individual gradients along the step")
    each: dict[str, Number] = {}
    for name in here:
        if name in there:
            d0, d1 = float(here[name].double().mean()), float(there[name].double().mean())
            moved = bool(o[Known.UPDATES][name].any())
            each[name] = -1.0 if not moved else -d1 / d0 if d0 else nan
    return each
