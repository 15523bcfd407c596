"""The quantities of gradient noise as their formulas stand, from a matrix G [N, D] whose rows are ∇ℓ_n.

Each function returns ``(value, status)``; an undefined value is NaN with its reason. B examples, g the mean
row, σ² the biased, s² the unbiased variance of a column, p_n = g_nᵀg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, sqrt

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Valued = tuple[float, str]


def norm_test(G: Array) -> Valued:
    """√( Σ‖g_n − g‖² / (B(B−1)‖g‖²) )."""
    return tested(G, lambda B, g: ((G - g) ** 2).sum() / (B * (B - 1) * (g @ g)))


def inner_test(G: Array) -> Valued:
    """√( Σ(p_n − ‖g‖²)² / (B(B−1)‖g‖⁴) ); the sum equals Σp_n² − B‖g‖⁴."""
    return tested(G, lambda B, g: ((G @ g - g @ g) ** 2).sum() / (B * (B - 1) * (g @ g) ** 2))


def ortho_test(G: Array) -> Valued:
    """√( Σ‖g_n − p_n g/‖g‖²‖² / (B(B−1)‖g‖²) ): what is left of g_n orthogonal to g."""

    def square(B: int, g: Array) -> float:
        orthogonal = G - np.outer(G @ g, g) / (g @ g)
        return float((orthogonal**2).sum() / (B * (B - 1) * (g @ g)))

    return tested(G, square)


def tested(G: Array, square: Callable[[int, Array], float]) -> Valued:
    """The root of a test's square, or why it has none."""
    g = G.mean(0)
    if len(G) == 1:
        return nan, "batch_size_1"
    if not g.any():
        return nan, "zero_gradient"
    return sqrt(square(len(G), g)), "ok"


def mean_gsnr(G: Array, epsilon: float = 1e-5) -> Valued:
    """The mean over j of g_j² / (σ²_j + ε)."""
    if len(G) == 1:
        return nan, "batch_size_1"
    return float((G.mean(0) ** 2 / (G.var(0) + epsilon)).mean()), "ok"


def early_stopping(G: Array, plain_sgd: bool, epsilon: float = 1e-5) -> Valued:
    """1 − (B/D) Σ_j g_j² / (s²_j + ε); positive means stop."""
    if len(G) == 1:
        return nan, "batch_size_1"
    ratio = G.mean(0) ** 2 / (G.var(0, ddof=1) + epsilon)
    return float(1 - len(G) * ratio.mean()), "ok" if plain_sgd else "derived_for_sgd"


def cabs(groups: Sequence[tuple[float, Array]], loss: float, plain_sgd: bool) -> Valued:
    """Σ_k η_k Σ_{j∈k} σ²_j / L over the parameter groups k, given as pairs (η_k, G_k)."""
    if len(groups[0][1]) == 1:
        return nan, "batch_size_1"
    if loss <= 0:
        return nan, "loss_not_positive"
    return sum(
        rate * float(G.var(0).sum()) for rate, G in groups
    ) / loss, "ok" if plain_sgd else "derived_for_sgd"


def tic_diag(G: Array, h: Array, epsilon: float = 1e-7) -> Valued:
    """Σ_j c_j / (h_j + ε), c_j the mean of g_nj²; ill conditioned: ≥ 1 % from h_j < 0 or |h_j| < 10 ε."""
    terms = (G**2).mean(0) / (h + epsilon)
    doubtful = (h < 0) | (np.abs(h) < 10 * epsilon)
    share = np.abs(terms[doubtful]).sum() >= 0.01 * np.abs(terms).sum() > 0
    return float(terms.sum()), "ill_conditioned" if share else "ok"


def tic_trace(G: Array, h: Array, epsilon: float = 1e-7) -> Valued:
    """Σ_j c_j / (Σ_j h_j + ε)."""
    return float((G**2).mean(0).sum() / (h.sum() + epsilon)), "ok"
