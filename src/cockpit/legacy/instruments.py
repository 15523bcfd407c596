"""The original's instruments as functions that draw into a cell of a grid: ``alpha_gauge(plotter, fig, grid[0, 0])``.

The plotter must have read something: `CockpitPlotter.plot` or ``_read_tracking_results``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cockpit.instruments.chart import View
from cockpit.legacy.plotter import CockpitPlotter
from cockpit.render.plot_command import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

__all__ = [
    "alpha_gauge",
    "cabs_gauge",
    "distance_gauge",
    "early_stopping_gauge",
    "grad_norm_gauge",
    "gradient_tests_gauge",
    "histogram_1d_gauge",
    "histogram_2d_gauge",
    "hyperparameter_gauge",
    "max_ev_gauge",
    "mean_gsnr_gauge",
    "performance_gauge",
    "tic_gauge",
    "trace_gauge",
]


def _gauge(name: str) -> Callable[[CockpitPlotter, Figure, SubplotSpec], None]:
    def gauge(plotter: CockpitPlotter, fig: Figure, gridspec: SubplotSpec) -> None:
        _draw(name, plotter, fig, gridspec, View())

    gauge.__name__ = gauge.__qualname__ = name
    gauge.__doc__ = f"Draw the instrument ``{name}`` into a cell of a figure's grid."
    return gauge


def _draw(name: str, plotter: CockpitPlotter, fig: Figure, gridspec: SubplotSpec, view: View) -> None:
    drawing("figure").draw_into(
        fig, gridspec.get_position(fig).bounds, name, plotter.tracked, view, plotter.show_log_iter
    )


alpha_gauge = _gauge("alpha_gauge")
cabs_gauge = _gauge("cabs_gauge")
distance_gauge = _gauge("distance_gauge")
early_stopping_gauge = _gauge("early_stopping_gauge")
grad_norm_gauge = _gauge("grad_norm_gauge")
gradient_tests_gauge = _gauge("gradient_tests_gauge")
histogram_1d_gauge = _gauge("histogram1d_gauge")
hyperparameter_gauge = _gauge("hyperparameter_gauge")
max_ev_gauge = _gauge("max_ev_gauge")
mean_gsnr_gauge = _gauge("mean_gsnr_gauge")
performance_gauge = _gauge("performance_gauge")
tic_gauge = _gauge("tic_gauge")
trace_gauge = _gauge("trace_gauge")


def histogram_2d_gauge(
    plotter: CockpitPlotter, fig: Figure, gridspec: SubplotSpec, idx: int | None = None
) -> None:
    """Draw the instrument ``histogram2d_gauge`` into a cell of a figure's grid; ``idx``: of one parameter only."""
    _draw("histogram2d_gauge", plotter, fig, gridspec, View(scope="" if idx is None else f"param_{idx}"))
