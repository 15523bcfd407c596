"""The noise-aware step length α: a parabola through two losses and two slopes that all carry noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class End:
    """One end of a step s: mean loss f and mean slope d = gᵀs, with the variances of those means (var/B)."""

    f: float
    d: float
    f_var: float
    d_var: float
    examples: int

    @classmethod
    def of(cls, losses: Array, slopes: Array) -> End:
        """From the losses ℓ_n and slopes g_nᵀs of the examples, variances unbiased."""
        n = len(losses)
        f_var, d_var = (float(x.var(ddof=1)) / n if n > 1 else nan for x in (losses, slopes))
        return cls(float(losses.mean()), float(slopes.mean()), f_var, d_var, n)


def alpha(start: End, end: End, moved: bool = True) -> tuple[float, str]:
    """α = −d̃₁/d̃₀ of the slopes corrected for f₁ − f₀ = (d₀ + d₁)/2, and its status."""
    if not moved:
        return -1.0, "zero_step"
    if min(start.examples, end.examples) == 1:
        return from_slopes(start.d, end.d, "slopes_only")
    c = end.f - start.f - (start.d + end.d) / 2
    V = start.f_var + end.f_var + (start.d_var + end.d_var) / 4
    if V > 0:
        d0, d1 = (e.d + e.d_var * c / V / 2 for e in (start, end))
        return from_slopes(d0, d1, "ok", max(abs(start.d), abs(start.d_var * c / V / 2)))
    # Without any noise the observations agree on a parabola, or all four count alike: V = 1 + 1 + 1/4 + 1/4.
    agree = abs(c) <= 1e-9 * max(abs(x) for x in (start.f, end.f, start.d, end.d))
    correction = 0.0 if agree else c / 5
    return from_slopes(start.d + correction, end.d + correction, "noise_free")


def from_slopes(d0: float, d1: float, status: str, scale: float | None = None) -> tuple[float, str]:
    """−d₁/d₀, unless the parabola starts flat or opens downwards; ``scale``: size of the terms of d₀."""
    if abs(d0) <= 1e-12 * (abs(d0) if scale is None else scale):
        return nan, "flat"
    if d1 < d0:
        return nan, "concave"
    return -d1 / d0, "uphill" if d0 > 0 else status


def least_squares(start: End, end: End) -> Array:
    """The parabola a₀ + a₁σ + a₂σ² by weighted least squares, weights 1/variance; its α is −2a₂/a₁ − 1."""
    design = np.array([[1.0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 2]])
    seen = np.array([start.f, end.f, start.d, end.d])
    root = 1 / np.sqrt([start.f_var, end.f_var, start.d_var, end.d_var])
    return np.linalg.lstsq(design * root[:, None], seen * root, rcond=None)[0]
