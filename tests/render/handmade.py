"""Charts made by hand that use every mark, for tests of renderers; nothing in them comes from an instrument."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cockpit.instruments.chart import (
    Axis,
    Band,
    Bars,
    Chart,
    Disc,
    Guide,
    Heat,
    Line,
    Plot,
    Reading,
    Ticks,
    Zone,
)

STEPS = np.arange(0.0, 300.0, 3.0)
_DRAWN = np.random.default_rng(0)


def noise(scale: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return scale * _DRAWN.standard_normal(len(STEPS))


LOSS = np.exp(-STEPS / 90) * 2.3 + 0.1 + noise(0.05)
LOSS[40:43] = np.nan
EDGES = np.linspace(-2.0, 2.0, 41)
COUNTS = np.rint(1e4 * np.exp(-4 * (EDGES[:-1] + 0.05) ** 2))
STEP_AXIS = Axis("Step", steps=True)

SERIES = Chart(
    "series",
    "Loss",
    "How far are we?",
    (
        Plot(
            (
                Band("spread", STEPS, LOSS - 0.2, LOSS + 0.2),
                Line("loss", STEPS, LOSS, smooth=True),
                Line(
                    "best", STEPS, np.minimum.accumulate(np.nan_to_num(LOSS, nan=9.0)), "neutral", dashed=True
                ),
                Line("accuracy", STEPS[::10], 1 - np.exp(-STEPS[::10] / 99), "second", right=True, dots=True),
                Guide("y", 0.5, "goal", "good"),
                Zone("x", 20.0, 60.0, "warm-up"),
                Ticks("gaps", np.array([120.0, 123.0]), ("no loss", "no loss")),
            ),
            STEP_AXIS,
            Axis("Loss"),
            right=Axis("Accuracy", range=(0.0, 1.0)),
        ),
    ),
    (Reading("loss", 0.1234, "0.123"), Reading("best", 0.1, "0.100")),
    ("2 of 100 steps have no loss.",),
)

HEAT = Chart(
    "heat",
    "Gradients and parameters",
    "What is happening in our network?",
    (
        Plot(
            (
                Heat("count", EDGES, EDGES / 10, np.outer(COUNTS, COUNTS) / 1e4, "log"),
                Guide("x", 0.0),
                Guide("y", 0.0),
            ),
            Axis("Parameter", range=(-2.0, 2.0)),
            Axis("Gradient", range=(-0.2, 0.2)),
        ),
        Plot((Bars("", EDGES, COUNTS),), Axis(range=(-2.0, 2.0)), Axis(scale="log"), place="top"),
        Plot(
            (Bars("", EDGES / 10, COUNTS, flat=True),),
            Axis(scale="log"),
            Axis(range=(-0.2, 0.2)),
            place="right",
        ),
    ),
    step=294,
)

_SMALL = Plot((Line("norm", STEPS, np.exp(noise()), "first"),), STEP_AXIS, Axis("norm", "log"), place="left")
TESTS = Chart(
    "tests",
    "Gradient tests",
    "How noisy is the batch?",
    (
        Plot(
            (
                Disc(1.2, "norm"),
                Zone("x", -0.4, 0.4, tone="second"),
                Zone("y", -0.05, 0.05, tone="third"),
                Guide("x", 0.0),
                Guide("y", 0.0),
            ),
            Axis("orthogonal", "symlog", (-2.0, 2.0), linear=0.1),
            Axis("inner product", "symlog", (-2.0, 2.0), linear=0.1),
            upright=True,
        ),
        _SMALL,
        replace(_SMALL, place="top", y=Axis("inner", "log")),
        replace(_SMALL, place="right", y=Axis("ortho", "log")),
    ),
    step=297,
)

NAMES = (*(f"encoder.layers.{k}.attention.in_proj_weight" for k in range(12)), "head.weight", "head.bias")
LAYERS = Chart(
    "layers",
    "Gradient norm of layers",
    "Which layer is it?",
    (
        Plot(
            (
                Heat(
                    "norm",
                    np.append(STEPS, 300.0),
                    np.arange(15.0),
                    np.exp(_DRAWN.standard_normal((14, 100))),
                    "log",
                ),
            ),
            STEP_AXIS,
            Axis(names=NAMES),
        ),
    ),
)

SIGNED = Chart(
    "signed",
    "Largest eigenvalue",
    "A gorge or a lake?",
    (Plot((Line("λ", STEPS, 100 * noise(), smooth=True),), STEP_AXIS, Axis("λ", "symlog", linear=1.0)),),
)

ABSENT = Chart(
    "absent", "TIC", "Curvature and noise?", missing='This run has no "tic_diag" yet. To record it: …'
)

EMPTY = replace(
    SERIES, plots=(replace(SERIES.plots[0], marks=(Line("loss", np.empty(0), np.empty(0)),), right=None),)
)

ALL = {chart.name: chart for chart in (SERIES, HEAT, TESTS, LAYERS, SIGNED, ABSENT)}
