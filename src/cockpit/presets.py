"""The paper's three configurations: lists of quantity names, each containing the one before."""

from __future__ import annotations

ECONOMY = (
    "alpha",
    "distance",
    "grad_hist1d",
    "grad_norm",
    "inner_test",
    "loss",
    "norm_test",
    "ortho_test",
    "update_size",
)
BUSINESS = (*ECONOMY, "tic_diag", "hess_trace")
FULL = (*BUSINESS, "hess_max_ev", "grad_hist2d")

PRESETS: dict[str, tuple[str, ...]] = {"economy": ECONOMY, "business": BUSINESS, "full": FULL}
