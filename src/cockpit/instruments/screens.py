"""Screens: which instruments stand together, and where. The primary one is the paper's Figure 2."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """Instruments below each other under one heading; ``wide`` is how many columns of the screen it takes."""

    title: str
    instruments: tuple[str, ...]
    wide: int = 1


@dataclass(frozen=True)
class Screen:
    """Rows of columns; all rows are equally wide."""

    name: str
    title: str
    rows: tuple[tuple[Column, ...], ...]


SCREENS = (
    Screen(
        "primary",
        "Cockpit",
        (
            (
                Column("Step size", ("alpha_gauge", "distance_gauge", "grad_norm_gauge")),
                Column("Gradients", ("gradient_tests_gauge", "histogram1d_gauge", "histogram2d_gauge")),
                Column("Curvature", ("max_ev_gauge", "trace_gauge", "tic_gauge")),
            ),
            (
                Column("Hyper-parameters", ("hyperparameter_gauge",)),
                Column("Performance", ("performance_gauge",), wide=2),
            ),
        ),
    ),
    Screen(
        "secondary",
        "Auxiliary",
        (
            (
                Column("Generalisation", ("mean_gsnr_gauge",)),
                Column("Batch size", ("cabs_gauge",)),
                Column("When to stop", ("early_stopping_gauge",)),
            ),
        ),
    ),
    Screen(
        "layers",
        "Layers",
        (
            (
                Column("All layers over time", ("layer_heat", "layer_updates"), wide=2),
                Column("This moment", ("layer_norms", "layer_histograms")),
            ),
        ),
    ),
)
"""The screens, in the order in which they are offered."""
