"""Histograms of individual gradients, counted with numpy; outliers and non-finite values apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def histogram_1d(G: Array, bins: int = 100, reach: tuple[float, float] = (-2.0, 2.0)) -> dict[str, Any]:
    """Counts of all elements g_nj in equal bins, the last one closed."""
    values, apart = inside(G.ravel(), reach)
    counts, edges = np.histogram(values, bins, reach)
    return {"counts": counts, "edges": edges, **apart}


def histogram_2d(
    G: Array,
    theta: Array,
    bins: tuple[int, int] = (40, 50),
    reach: tuple[tuple[float, float], tuple[float, float]] = ((-1.0, 1.0), (-2.0, 2.0)),
) -> dict[str, Any]:
    """Counts of all pairs (g_nj, θ_j), gradient first; parameters beyond their range go to the outer bins."""
    g, t = G.ravel(), np.broadcast_to(np.clip(theta, *reach[1]), G.shape).ravel()
    keep = np.isfinite(g) & (reach[0][0] <= g) & (g <= reach[0][1])
    _, apart = inside(g, reach[0])
    counts, x, y = np.histogram2d(g[keep], t[keep], bins, reach)
    return {"counts": counts.astype(np.int64), "edges": (x, y), **apart}


def inside(values: Array, reach: tuple[float, float]) -> tuple[Array, dict[str, int]]:
    """The values within the range, and how many are not."""
    finite = values[np.isfinite(values)]
    apart = {
        "underflow": int((finite < reach[0]).sum()),
        "overflow": int((finite > reach[1]).sum()),
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
    }
    return finite[(reach[0] <= finite) & (finite <= reach[1])], apart


def total(histogram: dict[str, Any]) -> int:
    """Everything that was counted."""
    return int(histogram["counts"].sum()) + sum(histogram[k] for k in ("underflow", "overflow", "nan", "inf"))
